"""NVIDIA Dynamo: a DynamoGraphDeployment, whose frontend routes requests and whose operator places servers on hosts."""

from dataclasses import replace

from commtax.launch.deployment import FACTS, PORT, WHY, DeployedPlan, variables, words_of
from commtax.launch.jobs import LaunchJob, model_id
from commtax.launch.kubernetes import claim, mounted, resources, settings_maps
from commtax.launch.yaml_text import Explained, Tree, yaml_text

GRAPH = FACTS["dynamo"]
Component = dict[str, Tree]


def write(deployment: DeployedPlan) -> str:
    """Return the graph: a frontend, and a component for each pool."""
    container = {"name": "main", "image": GRAPH[deployment.program.key], "command": ["python3", "-m", "dynamo.frontend"]}
    template = {"spec": {"containers": [container | {"args": [f"--http-port={PORT}"]}]}}
    frontend: Component = {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": template}
    spec = {"components": [frontend, *(_worker(deployment, pool) for pool in deployment.pools)]}
    graph = {"apiVersion": GRAPH["api"], "kind": "DynamoGraphDeployment", "metadata": {"name": deployment.name}, "spec": spec}
    return "\n".join([*deployment.remarks(), yaml_text([claim(deployment), *settings_maps(deployment), graph])])


def _worker(deployment: DeployedPlan, pool: LaunchJob) -> Component:
    command, key = pool.command(), deployment.program.key
    role = [f"--{GRAPH['role'][key]} {pool.role}"] if pool.role and key in GRAPH["role"] else []
    names = GRAPH["flags"].get(key, {})
    head = [f"python3 -m dynamo.{key}", f"--{GRAPH['model'].get(key, 'model')} {model_id(deployment.question.model)}"]
    args = [*head, *(_renamed(arg, names) for arg in command.args[2:]), *role]
    command = replace(command, args=args, settings_flag=_renamed(command.settings_flag, names))
    container: Component = {"name": "main", "image": GRAPH[key]}
    words = words_of(command, f"/settings/{pool.file}")
    container |= {"command": words[:3], "args": words[3:], "env": variables(command, pool)}
    container["resources"] = {"limits": resources(deployment, pool)}
    container["volumeMounts"], kept = ([one for one in rows if one["name"] != "shm"] for rows in mounted(deployment, pool, command))
    shared = Explained(f"{pool.gpus_per_host * FACTS['shm_gib_per_gpu']}Gi", WHY["shm"])
    component: Component = {"name": pool.role or "worker", "type": pool.role or "worker", "replicas": pool.servers}
    if pool.all_hosts > 1:
        component["multinode"] = {"nodeCount": Explained(pool.all_hosts, "hosts of one server")}
    return component | {"sharedMemorySize": shared, "podTemplate": {"spec": {"containers": [container], "volumes": kept}}}


def _renamed(arg: str, names: dict[str, str]) -> str:
    name, blank, value = arg.partition(" ")
    return f"--{names.get(name.removeprefix('--'), name.removeprefix('--'))}{blank}{value}" if name.startswith("--") else arg
