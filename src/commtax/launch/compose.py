"""Docker Compose: one service for each server, on the GPUs of one host, and a router where several are one to clients."""

from commtax.launch.deployment import FACTS, PORT, WHY, DeployedPlan, listening, words_of
from commtax.launch.jobs import LaunchJob
from commtax.launch.kubernetes import SCRIPT, router_script
from commtax.launch.yaml_text import Explained, Tree, yaml_text
from commtax.statement import Refusal

Service = dict[str, Tree]


def write(deployment: DeployedPlan) -> str:
    if wide := next((pool for pool in deployment.pools if pool.all_hosts > 1), None):
        rule = f"a server of this plan spans {wide.hosts} hosts, and Compose starts containers on one"
        raise Refusal.of(f"{rule}; kubernetes and slurm do more", emit="compose")
    used, here = sum(pool.servers * pool.gpus for pool in deployment.pools), deployment.question.cluster.gpus_per_host
    if used > here:
        raise Refusal.of(f"{used} GPUs are more than the {here} of one host; kubernetes and slurm do more", emit="compose")
    services, files, names, first = Service(), Service(), dict[str, list[str]](), 0
    for pool in deployment.pools:
        for number in range(pool.servers):
            name = f"{pool.file}-{number}" if deployment.apart or pool.servers > 1 else "llm"
            names.setdefault(pool.role, []).append(name)
            services[name] = _server(deployment, pool, name, list(range(first, first + pool.gpus)), PORT + number)
            first += pool.gpus
        if lines := pool.command().settings:
            files[f"{pool.file}.yaml"] = {"content": "\n".join(lines) + "\n"}
    if deployment.apart:
        prompts, decodes = ([(name, PORT) for name in names[role]] for role in ("prefill", "decode"))
        command = deployment.router(prompts, decodes)
        image, script = router_script(deployment, command)
        ready = {name: {"condition": "service_healthy"} for role in names for name in names[role]}
        service: Service = {"image": image, "entrypoint": list(SCRIPT), "command": [script], "ports": [f"{PORT}:{PORT}"]}
        if command.settings:
            files["disagg.yaml"] = {"content": "\n".join(command.settings) + "\n"}
            service["configs"] = [{"source": "disagg.yaml", "target": "/settings/disagg.yaml"}]
        services["router"] = service | {"depends_on": ready}
    tree: Service = {"name": deployment.name, "services": services, "volumes": {"models": {}}}
    return "\n".join([*deployment.remarks(), yaml_text([tree | ({"configs": files} if files else {})])])


def _server(deployment: DeployedPlan, pool: LaunchJob, name: str, gpus: list[int], port: int) -> Service:
    command, file = pool.command(host=name), f"{pool.file}.yaml"
    words = [*words_of(command, f"/settings/{file.removesuffix('.yaml')}"), *listening(deployment.program)]
    environment: Service = dict(v.partition("=")[::2] for v in command.variables)
    environment |= {"HF_HOME": FACTS["cache"], "HF_TOKEN": Explained("${HF_TOKEN:-}", "for gated models")}
    device = {"driver": "nvidia", "device_ids": Explained([str(gpu) for gpu in gpus], WHY["device"]), "capabilities": ["gpu"]}
    check: Service = {"test": ["CMD", "curl", "-f", f"http://localhost:{PORT}{deployment.health}"]}
    check |= {"interval": f"{FACTS['probe_s']}s", "start_period": Explained(f"{deployment.start_s}s", deployment.start_remark)}
    service: Service = {"image": deployment.image, "entrypoint": words[:1], "command": words[1:], "environment": environment}
    service |= {} if deployment.apart else {"ports": [f"{port}:{PORT}"]}
    service["volumes"] = [f"models:{FACTS['cache']}"]
    service |= {"configs": [{"source": file, "target": f"/settings/{file}"}]} if command.settings else {}
    service["shm_size"] = Explained(f"{pool.gpus * FACTS['shm_gib_per_gpu']}gb", WHY["shm"])
    if deployment.vendor == "amd":  # whose containers see GPUs by their device files
        service |= {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]}
        environment["HIP_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    else:
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service | {"healthcheck": check}
