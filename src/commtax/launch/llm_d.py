"""llm-d: values of its chart of model servers, and of the chart of the inference scheduler that requests go through."""

import shlex
from dataclasses import replace

from commtax.catalog.programs import program
from commtax.launch.deployment import FACTS, PORT, WHY, DeployedPlan, variables
from commtax.launch.flags import flags_of
from commtax.launch.jobs import LaunchJob, model_id
from commtax.launch.kubernetes import probes, started
from commtax.launch.yaml_text import Explained, Tree, yaml_text
from commtax.statement import Refusal

CHARTS = FACTS["llm-d"]
PLUGINS = CHARTS["plugins"]
Values = dict[str, Tree]


def write(deployment: DeployedPlan) -> str:
    """Write the values of llm-d-modelservice. Where prompts have no servers of their own, all servers are those that decode."""
    if deployment.program.key not in CHARTS["engines"].split():
        titles = ", ".join(program(key).title for key in CHARTS["engines"].split())
        raise Refusal.of(f"its charts start {titles}, not {deployment.program.title}; kubernetes and dynamo do", emit="llm-d")
    name = shlex.split(model_id(deployment.question.model))[0]  # as the Hub knows it
    artifacts: Values = {"name": name, "uri": f"hf://{name}", "size": deployment.volume}
    artifacts["authSecretName"] = Explained("hf-token", "gated models: a Secret whose key is HF_TOKEN")
    artifacts["labels"] = {"llm-d.ai/inference-serving": "true", CHARTS["label"]: deployment.name}
    proxy: Values = {"enabled": deployment.apart}
    if deployment.apart:
        proxy |= {"connector": Explained(CHARTS["connector"], WHY["sidecar"]), "secure": False, "targetPort": CHARTS["inner_port"]}
    several = Explained(any(pool.all_hosts > 1 for pool in deployment.pools), "servers of several hosts are LeaderWorkerSets")
    tree: Values = {"multinode": several, "modelArtifacts": artifacts, "routing": {"servicePort": PORT, "proxy": proxy}}
    pools = {pool.role or "decode": _pool(deployment, pool) for pool in deployment.pools}
    tree |= {"decode": pools["decode"], "prefill": pools.get("prefill", {"create": False})}
    return "\n".join([*deployment.remarks(), yaml_text([tree])])


def _pool(deployment: DeployedPlan, pool: LaunchJob) -> Values:
    """Return the servers of a pool. Those that decode beside others listen behind the sidecar."""
    command, port = pool.command(), CHARTS["inner_port"] if pool.role == "decode" else PORT
    local = max(1, pool.dp // pool.all_hosts)
    counted = pool.gpus_per_host // local
    if counted > 1 and pool.plan.tp == 1:  # what the chart counts is no degree of tp
        command = replace(command, args=[*command.args, *flags_of(pool.engine).spell(tp=1)])
    sizes: Values = {"tensor": Explained(counted, WHY["counted"])}
    fits = pool.dp > 1 and pool.dp % pool.all_hosts == 0  # each group on a host
    sizes |= {"data": pool.dp, "dataLocal": local} if fits else {}
    sizes |= {"workers": Explained(pool.all_hosts, "hosts of one server")} if pool.all_hosts > 1 else {}
    shared = {"medium": "Memory", "sizeLimit": f"{pool.gpus_per_host * FACTS['shm_gib_per_gpu']}Gi"}
    container: Values = {"name": "server", "image": deployment.image, "modelCommand": "custom"}
    container |= started(deployment, pool, command, port)
    container["env"] = [v for v in variables(command, pool) if v["name"] not in ("HF_TOKEN", "HF_HOME")]
    container["ports"] = [{"name": "http", "containerPort": port}]
    container |= {"mountModelVolume": True, "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}
    container |= probes(deployment, port)
    volumes = [{"name": "shm", "emptyDir": Explained(shared, WHY["shm"])}]
    return {"create": True, "replicas": pool.servers, "parallelism": sizes, "containers": [container], "volumes": volumes}


def scheduler(deployment: DeployedPlan) -> str:
    """Write the values of the inference scheduler's chart: which servers are its, and how it chooses among them."""
    extension: Values = {"replicas": 1, "image": CHARTS["scheduler"]}
    if deployment.apart:
        extension |= {"pluginsConfigFile": Explained("pd.yaml", WHY["chosen"]), "pluginsCustomConfig": {"pd.yaml": _plugins()}}
    pool = {"modelServers": {"matchLabels": {CHARTS["label"]: deployment.name}}, "targetPorts": [{"number": PORT}]}
    return yaml_text([{"inferenceExtension": extension, "inferencePool": pool}])


def _plugins() -> str:
    named = [*PLUGINS["always"].split(), *PLUGINS["filters"].split(), *PLUGINS["scorers"].split()]
    handler = {"type": "disagg-profile-handler", "parameters": {"deciderPluginName": named[1]}}
    profiles = []
    for role in ("prefill", "decode"):
        scorers = [{"pluginRef": scorer, "weight": weight} for scorer, weight in PLUGINS[role].items()]
        profiles.append({"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, *scorers, {"pluginRef": named[-1]}]})
    tree = {"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig"}
    plugins = [{"type": name} for name in named]
    return yaml_text([{**tree, "plugins": [*plugins[:2], handler, *plugins[2:]], "schedulingProfiles": profiles}]) + "\n"


def install(deployment: DeployedPlan) -> str:
    repository, name = f"{CHARTS['chart'].partition('/')[0]} {CHARTS['repository']}", deployment.name
    router = f"helm install {name}-router {CHARTS['router_chart']} --version {CHARTS['router_version']} -f router.yaml"
    return "\n".join([f"helm repo add {repository}", router, f"helm install {name} {CHARTS['chart']} -f servers.yaml"])
