"""Plain Kubernetes: a Deployment and its Service; for servers of several hosts a LeaderWorkerSet; two pools behind a router, as
StatefulSets, whose pods have names that stay."""

from collections.abc import Iterator
from dataclasses import replace

from commtax.launch.deployment import FACTS, PORT, WHY, DeployedPlan, host_script, listening, variables, words_of
from commtax.launch.jobs import Command, LaunchJob
from commtax.launch.yaml_text import Explained, Tree, yaml_text
from commtax.statement import Refusal

SCRIPT = ("/bin/bash", "-c")
MEETING = ("NODE_RANK=$LWS_WORKER_INDEX", "MASTER_ADDR=$LWS_LEADER_ADDRESS")  # what each pod of a group knows of it
Document = dict[str, Tree]


def write(deployment: DeployedPlan) -> str:
    """Return all resources of a plan, as ``kubectl apply`` takes them."""
    documents = [claim(deployment), *settings_maps(deployment)]
    for pool in deployment.pools:
        if pool.all_hosts > 1 and deployment.program.key in FACTS["by_mpi"].split():
            title = deployment.program.title
            rule = f"a server of this plan spans {pool.all_hosts} hosts, which {title} starts by MPI; slurm and dynamo do that"
            raise Refusal.of(rule, emit="kubernetes")
        documents += _pool(deployment, pool)
    documents += _router(deployment) if deployment.apart else []
    return "\n".join([*deployment.remarks(), yaml_text(documents)])


def claim(deployment: DeployedPlan) -> Document:
    pods = sum(pool.servers * pool.all_hosts for pool in deployment.pools)
    modes = Explained(["ReadWriteMany"], WHY["claim"]) if pods > 1 else ["ReadWriteOnce"]
    spec = {"accessModes": modes, "resources": {"requests": {"storage": deployment.volume}}}
    return _resource("v1", "PersistentVolumeClaim", f"{deployment.name}-models", spec=spec)


def settings_maps(deployment: DeployedPlan) -> list[Document]:
    """Return the ConfigMap with the files of settings, for engines that read some of their options from one."""
    settings = {f"{pool.file}.yaml": pool.command().settings for pool in deployment.pools}
    files = {name: "\n".join(lines) + "\n" for name, lines in settings.items() if lines}
    return [_resource("v1", "ConfigMap", f"{deployment.name}-settings", data=files)] if files else []


def _resource(version: str, kind: str, name: str, **content: Tree) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}


def _pool(deployment: DeployedPlan, pool: LaunchJob) -> Iterator[Document]:
    name, labels = pool.named(deployment.name), {"app": deployment.name, **({"role": pool.role} if pool.role else {})}
    template = {"metadata": {"labels": labels}, "spec": pod(deployment, pool)}
    if pool.all_hosts > 1:  # groups of pods, each with a leader that clients talk to
        size, restart = Explained(pool.all_hosts, "hosts of one server"), Explained("RecreateGroupOnPodRestart", WHY["restart"])
        group: Document = {"size": size, "restartPolicy": restart, "leaderTemplate": template}
        group["workerTemplate"] = {"spec": pod(deployment, pool, leads=False)}
        groups = {"replicas": pool.servers, "leaderWorkerTemplate": group}
        yield _resource("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, spec=groups)
        if not deployment.apart:
            leaders = {"leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/worker-index": "0"}
            yield _service(deployment.name, Explained(leaders, WHY["leader"]))
        return
    spec: Document = {"replicas": pool.servers, "selector": {"matchLabels": labels}, "template": template}
    if deployment.apart:
        named = {"serviceName": Explained(name, WHY["stable"]), "podManagementPolicy": Explained("Parallel", WHY["parallel"])}
        spec = {**named, **spec}
    yield _resource("apps/v1", "StatefulSet" if deployment.apart else "Deployment", name, spec=spec)
    yield _service(name, labels, headless=deployment.apart)


def _service(name: str, selector: Tree, headless: bool = False) -> Document:
    """Return the Service that finds pods by their labels. A headless one gives each of them a name, ready or not."""
    none = {"clusterIP": Explained("None", "a name for each pod"), "publishNotReadyAddresses": True} if headless else {}
    port = {"name": "http", "port": PORT, "targetPort": PORT}
    return _resource("v1", "Service", name, spec={**none, "selector": selector, "ports": [port]})


def started(deployment: DeployedPlan, pool: LaunchJob, command: Command, port: int = PORT, leads: bool = True) -> Document:
    """Return what a container runs: the program's words, or a script where hosts have to find each other."""
    more, file = listening(deployment.program, port), f"/settings/{pool.file}"
    if pool.all_hosts > 1:
        line = " ".join(["exec", replace(command, variables=()).line(file), *more])
        return {"command": list(SCRIPT), "args": ["\n".join([*MEETING, *host_script(command, pool.all_hosts, line, leads)])]}
    words = words_of(command, file)
    program = next(i for i, word in enumerate([*words, "-"]) if word.startswith("-") and word != "-m")
    return {"command": words[:program], "args": [*words[program:], *more]}


def pod(deployment: DeployedPlan, pool: LaunchJob, leads: bool = True) -> Document:
    """Return one host's part of a server."""
    command = pool.command()
    container: Document = {"name": "server", "image": deployment.image, **started(deployment, pool, command, leads=leads)}
    container["env"] = variables(command, pool)
    container["ports"] = [{"containerPort": PORT}]
    container["resources"] = {"limits": resources(deployment, pool)}
    container |= probes(deployment) if leads else {}
    if pool.all_hosts > 1 or deployment.apart:
        container["securityContext"] = {"capabilities": {"add": Explained(["IPC_LOCK"], WHY["pins"])}}
    container["volumeMounts"], volumes = mounted(deployment, pool, command)
    return {"containers": [container], "volumes": volumes}


def resources(deployment: DeployedPlan, pool: LaunchJob) -> Document:
    """Return the GPUs of a host, with hints: at fast networks where hosts talk to each other, at the chip where pools differ."""
    chips = {each.question.cluster.chip.key for each in deployment.pools}
    hints = [f"{pool.question.cluster.chip.name}, by a nodeSelector of yours"] * (len(chips) > 1)
    hints += [WHY["rdma"]] * (pool.all_hosts > 1 or deployment.apart)
    count = str(pool.gpus_per_host)
    gpu = str(FACTS["gpu"].get(pool.question.cluster.chip.vendor.lower(), FACTS["gpu"]["nvidia"]))  # as device plugins call it
    return {gpu: Explained(count, "; ".join(hints)) if hints else count}


def probes(deployment: DeployedPlan, port: int = PORT) -> Document:
    """Return the probes that tell when a server is up, so that nobody restarts it while it loads its weights."""
    ask, every = {"httpGet": {"path": deployment.health, "port": port}}, int(FACTS["probe_s"])
    tries = Explained(-(-deployment.start_s // every), deployment.start_remark)
    probe = {**ask, "periodSeconds": every}
    return {"startupProbe": {**probe, "failureThreshold": tries}, "readinessProbe": probe}


def mounted(deployment: DeployedPlan, pool: LaunchJob, command: Command) -> tuple[list[Document], list[Document]]:
    """Return a container's mounts and its pod's volumes: weights, shared memory, and the file of settings where there is one."""
    shared = {"medium": "Memory", "sizeLimit": f"{pool.gpus_per_host * FACTS['shm_gib_per_gpu']}Gi"}
    claimed: Document = {"persistentVolumeClaim": {"claimName": f"{deployment.name}-models"}}
    memory: Document = {"emptyDir": Explained(shared, WHY["shm"])}
    rows = [("models", FACTS["cache"], claimed), ("shm", "/dev/shm", memory)]
    rows += [("settings", "/settings", {"configMap": {"name": f"{deployment.name}-settings"}})] * bool(command.settings)
    mounts: list[Document] = [{"name": name, "mountPath": place} for name, place, _ in rows]
    return mounts, [{"name": name, **source} for name, _, source in rows]


def _router(deployment: DeployedPlan) -> Iterator[Document]:
    names = [(pool.named(deployment.name), pool.servers) for pool in deployment.pools]
    prompts, decodes = ([(f"{name}-{i}.{name}", PORT) for i in range(count)] for name, count in names)
    name, command = f"{deployment.name}-router", deployment.router(prompts, decodes)
    image, script = router_script(deployment, command)
    container: Document = {"name": "router", "image": image, "command": list(SCRIPT), "args": [script]}
    container["ports"] = [{"containerPort": PORT}]
    labels, template = {"app": name}, {"containers": [container]}
    if command.settings:
        yield _resource("v1", "ConfigMap", name, data={"disagg.yaml": "\n".join(command.settings) + "\n"})
        container["volumeMounts"] = [{"name": "settings", "mountPath": "/settings"}]
        template["volumes"] = [{"name": "settings", "configMap": {"name": name}}]
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": template}}
    yield _resource("apps/v1", "Deployment", name, spec=spec)
    yield _service(deployment.name, labels)


def router_script(deployment: DeployedPlan, command: Command) -> tuple[str, str]:
    """Return the image of a router, and what starts it there."""
    package, line = FACTS["router"].get(deployment.program.key, ""), command.line("/settings/disagg").replace(" --", " \\\n  --")
    if not package:
        return deployment.image, f"exec {line}\n"
    return FACTS["python"], f"# {WHY['router']}\npip install --quiet {package}\nexec {line}\n"
