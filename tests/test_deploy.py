"""The manifests of deploy/kuberay fit Kubernetes, each other, their topology and our versions.

``FOREBAY_KUBERAY_CRDS=FOLDER`` checks them against KubeRay's own definitions as well: the files
``ray.io_*.yaml`` of its Helm chart.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import yaml
from packaging.requirements import Requirement
from tests.kubernetes_fields import misfits
from tests.pictures import photo, saved

from forebay.state import State
from forebay.testing import MemorySource
from forebay.topology import EngineChoice, Topology, load
from forebay.training import Checkpoint, Stopper, TrainingLoader

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "kuberay"
README = (FOLDER / "README.md").read_text()
MOUNTED = FOLDER / "clicks"
"""What README.md has put into the ConfigMap of this name."""
RAY = next(r for r in map(Requirement, requires("forebay") or ()) if r.name == "ray")
FILES = sorted(FOLDER.glob("*.yaml"))
MANIFESTS: list[dict[str, Any]] = [
    manifest for file in FILES for manifest in yaml.safe_load_all(file.read_text())
]
IDS = [f"{m['kind']}-{m['metadata']['name']}" for m in MANIFESTS]
CRDS = os.environ.get("FOREBAY_KUBERAY_CRDS")
SECRETS = {"KAFKA_BOOTSTRAP_SERVERS": "b:1", "KAFKA_USERNAME": "me", "KAFKA_PASSWORD": "S3CR3T-1"}
ONE_RANK = """
import os
from dataclasses import replace
from pathlib import Path
from my_training import train
from tests.pictures import photo, saved
from tests.test_deploy import MOUNTED, SECRETS
from forebay.testing import MemorySource
from forebay.topology import EngineChoice, load
from forebay.training import Checkpoint, Stopper, TrainingLoader

topology = load(MOUNTED / "topology.yaml", env=SECRETS, engine=EngineChoice(name="threads"))
rows = [{"value": saved(photo(i), "JPEG")} for i in range(10)]
source = MemorySource({"a": rows[:6], "b": rows[6:]})  # one has three batches, one has two
pipeline = replace(topology.pipeline, source=source, sink=None).batch(2)
loader = TrainingLoader(pipeline.loader(state_of="committed"), Stopper(), limit=LIMIT)
train(loader, Checkpoint(Path(os.environ["RANK"] + ".pt"), loader, every=1))
loader.close()
"""
every_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=IDS)


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [m for m in MANIFESTS if m["kind"] == kind]


def pods(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod in a manifest."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for item in value.values():
            yield from pods(item)
    elif isinstance(value, list):
        for item in value:
            yield from pods(item)


def clusters() -> list[dict[str, Any]]:
    jobs = [m["spec"]["rayClusterSpec"] for m in of_kind("RayJob")]
    return jobs + [m["spec"] for m in of_kind("RayCluster")]


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch) -> Iterator[Topology]:
    """The topology that the pods run, checked as ``forebay validate`` does."""
    monkeypatch.syspath_prepend(MOUNTED)
    on_cluster = EngineChoice(name="ray", address="auto")
    yield load(MOUNTED / "topology.yaml", env=SECRETS, engine=on_cluster)
    sys.modules.pop("my_training", None)  # other tests have modules of this name, too


@every_manifest
def test_every_field_is_one_that_kubernetes_knows(manifest: dict[str, Any]) -> None:
    assert misfits(manifest) == []


def test_a_mistyped_field_is_noticed() -> None:
    (job,) = of_kind("RayJob")
    wrong = copy.deepcopy(job)
    wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = "4"
    group = ".spec.rayClusterSpec.workerGroupSpecs[0]"
    assert misfits(wrong) == [f"{group}.maxReplica: there is no such field"]


@every_manifest
def test_kuberay_itself_takes_it(manifest: dict[str, Any]) -> None:
    if manifest["apiVersion"] != "ray.io/v1":
        return
    if CRDS is None:
        pytest.skip("not checked against KubeRay's own definitions: set FOREBAY_KUBERAY_CRDS")
    definition = yaml.load(
        Path(CRDS, f"ray.io_{manifest['kind'].lower()}s.yaml").read_text(), yaml.CSafeLoader
    )
    (v1,) = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
    schema = closed(v1["schema"]["openAPIV3Schema"])
    jsonschema.Draft202012Validator(schema).validate(manifest)


def closed(schema: Any) -> Any:
    """A definition that refuses unknown fields, which a cluster would drop without a word."""
    if isinstance(schema, list):
        return [closed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {k: closed(v) for k, v in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        shut.setdefault("additionalProperties", False)
    return shut


def test_the_version_of_ray_is_one_that_the_engine_was_tested_with() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    tags = re.findall(r"rayproject/ray:(\d+\.\d+\.\d+)-py3\d+", dockerfile)
    assert len(tags) == 2
    for tag in [*tags, *(c["rayVersion"] for c in clusters())]:
        assert tag in RAY.specifier


def test_every_pod_runs_the_one_image_of_this_version() -> None:
    image = f"forebay:{version('forebay')}"
    assert f"-t {image} " in (FOLDER / "Dockerfile").read_text()
    assert {c["image"] for p in pods(MANIFESTS) for c in p["containers"]} == {image}


def test_the_image_is_made_of_all_that_the_package_is_built_of_and_no_more() -> None:
    lines = re.findall(r"^COPY --chown=\S+ (.+) \S+$", (FOLDER / "Dockerfile").read_text(), re.M)
    copied = {name for line in lines for name in line.split()}
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r"^(?:readme|license-files|packages) = (.+)$", project, re.M)
    needed = {"pyproject.toml", "constraints.txt", *re.findall(r'"([^"/]+)[^"]*"', " ".join(named))}
    assert copied == needed


def test_the_topology_is_valid_on_the_engine_of_the_cluster(topology: Topology) -> None:
    assert topology.engine == "ray"
    assert topology.train is not None and topology.train.wants_checkpoint


def test_the_training_function_trains_on_what_the_stages_give(
    topology: Topology, tmp_path: Path
) -> None:
    rows = [{"value": saved(photo(i), "JPEG")} for i in range(8)]
    pipeline = replace(topology.pipeline, source=MemorySource({"a": rows}), sink=None)
    stopper = Stopper()
    loader = TrainingLoader(pipeline.batch(4).loader(state_of="committed"), stopper)
    checkpoint = Checkpoint(tmp_path / "c.pt", loader, every=1)
    assert topology.train is not None
    topology.train.function(loader, checkpoint)
    assert loader.batches == 2
    assert set(checkpoint.load()["model"]) == {"weight", "bias"}


def run_ranks(folder: Path, ranks: int, limit: int | None) -> dict[str, Any]:
    """Train until a rank has no more data, or has its limit; what rank 0 has saved."""
    (folder / "rank.py").write_text(ONE_RANK.replace("LIMIT", str(limit)))
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    path = os.pathsep.join([str(MOUNTED), str(ROOT), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, "rank.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    saved: dict[str, Any] = torch.load(folder / "0.pt")["payload"]
    return saved


def delivered(saved: dict[str, Any]) -> dict[str, int]:
    return {k: p.offset for k, p in State.from_json(saved["position"]).splits.items()}


def test_ranks_train_one_model_and_stop_together_when_one_has_no_more_data(
    tmp_path: Path,
) -> None:
    first = run_ranks(tmp_path, 2, limit=None)
    second = torch.load(tmp_path / "1.pt")["payload"]
    assert first["model"]["weight"].equal(second["model"]["weight"])
    assert delivered(first) == delivered(second) == {"a": 4, "b": 4}


def test_ranks_go_on_from_one_file_whatever_the_others_have_saved(tmp_path: Path) -> None:
    assert delivered(run_ranks(tmp_path, 2, limit=1)) == {"a": 2, "b": 2}
    (tmp_path / "1.pt").unlink()  # as if rank 1 had been killed before it saved
    assert delivered(run_ranks(tmp_path, 2, limit=1)) == {"a": 4, "b": 4}
    assert delivered(run_ranks(tmp_path, 1, limit=None)) == {"a": 6, "b": 4}


@pytest.mark.parametrize("name", re.findall(r"(?<= )deploy/kuberay/\S+|(?<==)deploy/\S+", README))
def test_what_the_readme_applies_is_there(name: str) -> None:
    assert (ROOT / name).exists()


def test_no_manifest_starts_a_run_beside_what_both_ways_need() -> None:
    kinds = {f.name: {m["kind"] for m in yaml.safe_load_all(f.read_text())} for f in FILES}
    assert kinds == {
        "checkpoints.yaml": {"PersistentVolumeClaim"},
        "cluster-and-trainer.yaml": {"RayCluster", "Job"},
        "job.yaml": {"RayJob"},
    }


def test_pods_that_run_the_topology_have_all_that_it_names() -> None:
    named = set(re.findall(r"\$\{(\w+)\}", (MOUNTED / "topology.yaml").read_text()))
    assert named == set(SECRETS)
    heads = [c["headGroupSpec"]["template"]["spec"] for c in clusters()[:1]]
    trainers = [m["spec"]["template"]["spec"] for m in of_kind("Job")]
    for pod in heads + trainers:
        (container,) = pod["containers"]
        assert named <= {e["name"] for e in container["env"]}
        mounts = {m["mountPath"] for m in container["volumeMounts"]}
        assert {"/topology", "/checkpoints"} <= mounts


def test_what_runs_is_a_run_of_the_mounted_topology_on_ray() -> None:
    commands = [m["spec"]["entrypoint"] for m in of_kind("RayJob")]
    commands += [p["containers"][0]["args"][0] for m in of_kind("Job") for p in pods(m)]
    for command in commands:
        words = shlex.split(command)
        assert words[words.index("run") + 1 :][:4] == [
            "/topology/topology.yaml", "--engine", "ray", "--address"
        ]  # fmt: skip


@every_manifest
def test_every_mount_and_volume_is_there(manifest: dict[str, Any]) -> None:
    existing = {
        "configMap": set(re.findall(r"create configmap (\S+) --from-file=", README)),
        "persistentVolumeClaim": {m["metadata"]["name"] for m in of_kind("PersistentVolumeClaim")},
    }
    for pod in pods(manifest):
        volumes = {v["name"]: v for v in pod.get("volumes", ())}
        mounted = {m["name"] for c in pod["containers"] for m in c.get("volumeMounts", ())}
        assert mounted == set(volumes)
        for volume in volumes.values():
            ((kind, reference),) = [(k, v) for k, v in volume.items() if k != "name"]
            assert next(iter(reference.values())) in existing[kind]


@pytest.mark.parametrize("cluster", clusters(), ids=["job", "cluster"])
def test_the_autoscaler_can_give_all_workers_that_the_topology_may_want(
    cluster: dict[str, Any], topology: Topology
) -> None:
    (group,) = cluster["workerGroupSpecs"]
    assert cluster["enableInTreeAutoscaling"]
    assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    (container,) = group["template"]["spec"]["containers"]
    cpus = int(container["resources"]["limits"]["cpu"]) * group["maxReplicas"]
    ranks = 1 if cluster is clusters()[0] else 2
    engine: Any = topology.loader_options["engine"]
    assert ranks * (topology.loader_options["workers"][1] * engine.num_cpus + 0.1) <= cpus
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
