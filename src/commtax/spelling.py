"""Options as the engines spell them, turned into ours before the command line is parsed."""

from __future__ import annotations

ALIASES = {
    "--tensor-parallel-size": "--tp",
    "--tensor-model-parallel-size": "--tp",
    "--tp-size": "--tp",
    "--pipeline-parallel-size": "--pp",
    "--pipeline-model-parallel-size": "--pp",
    "--pp-size": "--pp",
    "--data-parallel-size": "--dp",
    "--dp-size": "--dp",
    "--expert-model-parallel-size": "--ep",
    "--ep-size": "--ep",
    "--context-parallel-size": "--cp",
    "--enable-expert-parallel": "--ep",
    "-tp": "--tp",
    "-pp": "--pp",
    "-dp": "--dp",
    "-ep": "--ep",
    "-cp": "--cp",
    "--all2all-backend": "--ep-backend",
    "--kv-cache-dtype": "--kv-dtype",
    "--kv-cache-memory": "--kv-cache-memory-bytes",
    "--enforce-eager": "--eager",
    "--input-len": "--context",
    "--isl": "--context",
    "--seq-length": "--context",
    "--seq": "--context",
    "--micro-batch-size": "--micro-batch",
    "--mem-fraction-static": "--gpu-memory-utilization",
}


def normalise(argv: list[str]) -> list[str]:
    """Underscores to dashes, engine spellings to ours, and a bare ``-ep`` to ``--ep auto`` (tp x dp, as in vLLM).

    >>> normalise(["fit", "mixtral-8x7b", "--tensor_parallel_size=8", "-ep"])
    ['fit', 'mixtral-8x7b', '--tp=8', '--ep', 'auto']
    """
    result: list[str] = []
    for position, word in enumerate(argv):
        if word == "--":
            return result + argv[position:]
        if not word.startswith("-") or _is_number(word):
            result.append(word)
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        bare = name == "--enable-expert-parallel"
        name = ALIASES.get(name, name)
        result.append(name + equals + value)
        follower = argv[position + 1] if position + 1 < len(argv) else "-"
        if name == "--ep" and not equals and (bare or (not follower.isdigit() and follower != "auto")):
            result.append("auto")
    return result


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
