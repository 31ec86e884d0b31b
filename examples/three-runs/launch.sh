vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4
