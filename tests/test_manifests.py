"""The container and the manifest of examples/serving say what the server and KServe understand.

Nothing is built or deployed here: that needs a Docker daemon and a cluster.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from density_softmax.cli.main import app

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "serving"
RUNTIME, SERVICE = yaml.safe_load_all((FOLDER / "kserve.yaml").read_text(encoding="utf-8"))
(CONTAINER,) = RUNTIME["spec"]["containers"]

# The fields of KServe's types (pkg/apis/serving in its repository), and of a container.
FIELDS = {
    "runtime": {"annotations", "labels", "supportedModelFormats", "protocolVersions", "containers"},
    "format": {"name", "version", "autoSelect", "priority"},
    "container": {"name", "image", "args", "env", "ports", "readinessProbe", "livenessProbe"}
    | {"securityContext", "resources"},
    "predictor": {"model", "minReplicas", "maxReplicas", "scaleMetric", "scaleTarget"},
    "model": {"modelFormat", "protocolVersion", "runtime", "storageUri", "resources"},
}


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, whose lines that go on are one."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in whole.splitlines() if line]


def values(name: str) -> list[str]:
    return [value for found, value in instructions() if found == name]


def serve_options() -> set[str]:
    command = typer.main.get_command(app).commands["serve"]
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (RUNTIME["spec"], "runtime"),
        *((each, "format") for each in RUNTIME["spec"]["supportedModelFormats"]),
        (CONTAINER, "container"),
        (SERVICE["spec"]["predictor"], "predictor"),
        (SERVICE["spec"]["predictor"]["model"], "model"),
    ],
)
def test_all_fields_are_known(value: dict[str, Any], fields: str) -> None:
    assert set(value) <= FIELDS[fields]


def test_the_service_asks_for_what_the_runtime_offers() -> None:
    runtime, model = RUNTIME["spec"], SERVICE["spec"]["predictor"]["model"]
    assert (RUNTIME["apiVersion"], RUNTIME["kind"]) == (
        "serving.kserve.io/v1alpha1",
        "ServingRuntime",
    )
    assert (SERVICE["apiVersion"], SERVICE["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["modelFormat"]["name"] in [
        each["name"] for each in runtime["supportedModelFormats"]
    ]
    assert model["protocolVersion"] in runtime["protocolVersions"]
    assert CONTAINER["name"] == "kserve-container"
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", SERVICE["metadata"]["name"])


def test_the_model_is_served_from_where_it_is_put_under_the_name_of_the_service() -> None:
    (path,) = [Path(word) for word in CONTAINER["args"] if not word.startswith("--")]
    stored = SERVICE["spec"]["predictor"]["model"]["storageUri"]
    assert path == Path("/mnt/models", Path(stored).name)
    assert path.stem == SERVICE["metadata"]["name"]
    assert json.loads(values("CMD")[0]) == [str(path)]


def test_the_command_of_the_image_is_one_that_there_is() -> None:
    (entry,) = map(json.loads, values("ENTRYPOINT"))
    assert entry[:2] == ["density-softmax", "serve"]
    words = [word for word in (*entry, *CONTAINER["args"]) if word.startswith("--")]
    assert {word.partition("=")[0] for word in words} <= serve_options()


def test_one_port_is_meant_everywhere() -> None:
    (entry,) = map(json.loads, values("ENTRYPOINT"))
    port = entry[entry.index("--port") + 1]
    assert values("EXPOSE") == [port]
    assert [str(each["containerPort"]) for each in CONTAINER["ports"]] == [port]
    probes = [CONTAINER[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")]
    assert {str(probe["port"]) for probe in probes} == {port}
    assert RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"] == port


def test_the_image_holds_what_it_copies_and_pins_what_it_installs() -> None:
    for sources in values("COPY"):
        for source in sources.split()[:-1]:
            assert (ROOT / source).exists(), source
    pinned = {
        re.sub("[-_.]+", "-", line.partition("==")[0]).lower()
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    }
    words = shlex.split(values("RUN")[0].partition("&&")[0])
    packages = words[words.index("constraints.txt") + 1 :]
    assert packages
    assert set(packages) <= pinned
    assert values("USER") == [str(CONTAINER["securityContext"]["runAsUser"])]
