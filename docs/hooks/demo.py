"""What the demo page runs: onnxruntime-web, fetched from npm, and the models of docs/demo.

The runtime is too large for the repository, so the build fetches the pinned version by `npm pack`,
compares its checksum, and keeps the archive in .cache. Where that fails (no npm, no network), the
site is built without it, and the page says so. What the page loads are scripts that hold the data,
because a browser that opens the site from a disk lets pages load scripts, but no other files.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import logging
import shutil
import subprocess
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from density_softmax.serve.predictor import Predictor

log = logging.getLogger("mkdocs.hooks.demo")

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "docs" / "demo"
# The smallest of the recent versions; newer ones add nothing that these models need.
PACKAGE = "onnxruntime-web@1.22.0"
SHA512 = "Ud/+EBo6mhuaQWt/OjaOk0iNWjXqJoeeMFr6xQEERZdIZH2OWpGzuujz7lfuOBjUa6TEE/sc4nb7Da5dNL34fg=="
# Of the package: the interface, the loader of the WebAssembly module, and the module.
INTERFACE, LOADER, WASM = (
    "ort.wasm.min.js",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
SECONDS = 120  # for 20 MB


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the runtime, if it is to be had, and the models."""
    scripts = {"models.js": models_script()}
    try:
        scripts |= runtime_scripts(package())
    except OSError as error:
        log.info("the demo page is built without onnxruntime-web: %s", error)
    for name, content in scripts.items():
        files.append(File.generated(config, f"assets/onnxruntime-web/{name}", content=content))


def package(cache: Path = ROOT / ".cache") -> bytes:
    """The archive of onnxruntime-web, from the cache or from npm.

    Args:
        cache: the folder that keeps it.

    Raises:
        OSError: if it cannot be fetched, or is not the one that was pinned.
    """
    kept = cache / f"{PACKAGE.replace('@', '-')}.tgz"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fetched = fetch(Path(folder))
            check(fetched.read_bytes())
            fetched.replace(kept)
    content = kept.read_bytes()
    check(content)
    return content


def fetch(folder: Path) -> Path:
    """Have npm fetch the package, from the registry that the user has configured."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    options = ["--silent", "--ignore-scripts", "--fetch-retries=1", f"--pack-destination={folder}"]
    try:
        subprocess.run(
            [npm, "pack", PACKAGE, *options], check=True, capture_output=True, timeout=SECONDS
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise OSError(f"npm pack {PACKAGE} failed ({error})") from error
    (found,) = folder.glob("*.tgz")
    return found


def check(content: bytes) -> None:
    """Refuse an archive that is not the pinned one."""
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != SHA512:
        raise OSError(f"{PACKAGE} has the SHA-512 {found}, not {SHA512}")


def runtime_scripts(archive: bytes) -> dict[str, str]:
    """The interface as it is, and a script that holds the rest; by file name."""
    with tarfile.open(fileobj=BytesIO(archive)) as package:

        def read(name: str) -> bytes:
            member = package.extractfile(f"package/dist/{name}")
            assert member is not None
            return member.read()

        rest = {
            "loader": read(LOADER).decode(),
            "wasm": encoded(gzip.compress(read(WASM), compresslevel=6, mtime=0)),
        }
        return {INTERFACE: read(INTERFACE).decode(), "runtime.js": script("demoRuntime", rest)}


def models_script() -> str:
    """The models with what the page knows about them, as a script."""
    return script("demoModels", {file.stem: facts(file) for file in sorted(MODELS.glob("*.json"))})


def facts(file: Path) -> dict[str, Any]:
    """What the page knows about a model.

    Args:
        file: with inputs to show; the graphs are beside it.
    """
    graph, plain = file.with_suffix(".onnx"), file.with_name(f"{file.stem}_plain.onnx")
    card = Predictor(graph, threads=1).card
    assert card.policy is not None
    typical = card.policy.typical
    return {
        **json.loads(file.read_text(encoding="utf-8")),
        "class_names": card.class_names,
        "input_shape": card.input_shape,
        "typical": {
            "count": typical.count,
            "values": typical.values.tolist(),
            "above": typical.above.tolist(),
        },
        "graph": encoded(graph.read_bytes()),
        "plain": encoded(plain.read_bytes()),
    }


def encoded(content: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(content).decode()


def script(name: str, value: object) -> str:
    """A script that gives a value a global name."""
    return f"window.{name} = {json.dumps(value)};\n"
