"""The fields of Kubernetes and KubeRay objects that our manifests use, and what they hold.

Written by hand after the published API (``ray.io/v1``): an unknown field is one that a cluster
would drop without a word. What is not listed here is not wrong, it is only not used so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NAMED = {"apiVersion": str, "kind": str, "metadata": {"name": str}}
ANY: dict[str, Any] = {"*": str}
"""A mapping of any names to text."""
RESOURCES = {"requests": ANY, "limits": ANY}
CONTAINER = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "ports": [{"containerPort": int, "name": str}],
    "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}],
    "resources": RESOURCES,
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
POD = {
    "spec": {
        "restartPolicy": str,
        "terminationGracePeriodSeconds": int,
        "containers": [CONTAINER],
        "volumes": [
            {"name": str, "configMap": {"name": str}, "persistentVolumeClaim": {"claimName": str}}
        ],
    }
}
CLUSTER = {
    "rayVersion": str,
    "authOptions": {"mode": str, "secretName": str},
    "enableInTreeAutoscaling": bool,
    "autoscalerOptions": {"version": str, "upscalingMode": str, "idleTimeoutSeconds": int},
    "headGroupSpec": {"rayStartParams": ANY, "template": POD},
    "workerGroupSpecs": [
        {
            "groupName": str,
            "replicas": int,
            "minReplicas": int,
            "maxReplicas": int,
            "rayStartParams": ANY,
            "template": POD,
        }
    ],
}
KINDS: Mapping[tuple[str, str], Any] = {
    ("v1", "ConfigMap"): {**NAMED, "data": ANY},
    ("v1", "PersistentVolumeClaim"): {
        **NAMED,
        "spec": {"accessModes": [str], "resources": RESOURCES},
    },
    ("batch/v1", "Job"): {**NAMED, "spec": {"backoffLimit": int, "template": POD}},
    ("ray.io/v1", "RayCluster"): {**NAMED, "spec": CLUSTER},
    ("ray.io/v1", "RayJob"): {
        **NAMED,
        "spec": {
            "entrypoint": str,
            "backoffLimit": int,
            "shutdownAfterJobFinishes": bool,
            "ttlSecondsAfterFinished": int,
            "rayClusterSpec": CLUSTER,
        },
    },
}


def misfits(manifest: Mapping[str, Any]) -> list[str]:
    """What of a manifest fits no field, each as ``path: why``."""
    kind = (manifest["apiVersion"], manifest["kind"])
    return list(_misfits(manifest, KINDS[kind], ""))


def _misfits(value: Any, field: Any, path: str) -> Iterator[str]:
    if isinstance(field, dict) and isinstance(value, dict):
        for key, item in value.items():
            known = field.get(key, field.get("*"))
            if known is None:
                yield f"{path}.{key}: there is no such field"
            else:
                yield from _misfits(item, known, f"{path}.{key}")
    elif isinstance(field, list) and isinstance(value, list):
        for i, item in enumerate(value):
            yield from _misfits(item, field[0], f"{path}[{i}]")
    elif type(value) is not field:
        yield f"{path}: {value!r} is of another type"
