"""The command that serves models over HTTP. It needs no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

LOOPBACK = ("127.0.0.1", "::1", "localhost")


Models = Annotated[list[Path], typer.Argument(help="Exported .onnx files.", metavar="MODEL...")]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")]
PolicyFile = Annotated[
    Path | None, typer.Option(help="A .json of `Policy.save`, in place of the model's own.")
]
Workers = Annotated[
    int, typer.Option(min=1, help="Processes that share the port; with ray the most replicas.")
]
Threads = Annotated[
    int,
    typer.Option(min=0, help="CPU threads per batch; 0: all but one, or with workers its share."),
]
State = Annotated[
    Path | None,
    typer.Option(help="A folder in which monitors outlive a restart.", show_default="none"),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="A file with the token that requests must carry.",
        show_default="$DENSITY_SOFTMAX_TOKEN",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="Another host name that requests may use, such as a proxy's."),
]
Batch = Annotated[
    int, typer.Option(min=1, help="Most rows computed together; 1 answers one by one.")
]
Wait = Annotated[float, typer.Option(min=0, help="Milliseconds to wait for other requests.")]
MaxQueue = Annotated[
    int, typer.Option(min=1, help="Rows that may wait; beyond, the answer is 429.")
]
MaxRows = Annotated[int, typer.Option(min=1, help="Most inputs in a request.")]
MaxMegabytes = Annotated[float, typer.Option(min=0.001, help="Most megabytes in a request.")]
MaxPixels = Annotated[int, typer.Option(min=1, help="Most pixels in an image.")]
MaxSeconds = Annotated[
    float, typer.Option(min=0.01, help="Most seconds from first byte to answer.")
]
FalseAlarms = Annotated[
    float, typer.Option(help="Probability of a monitor's alarm, ever, if nothing changes.")
]
KeepUnknown = Annotated[
    int, typer.Option(min=0, help="Latest unknown inputs shown on the page; 0 keeps none.")
]
EngineName = Literal["local", "ray"]
Engine = Annotated[EngineName, typer.Option(help="This machine, or a Ray cluster.")]


def serve(
    models: Models,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    policy: PolicyFile = None,
    workers: Workers = 1,
    threads: Threads = 0,
    state: State = None,
    token_file: TokenFile = None,
    allow_host: AllowHost = None,
    batch: Batch = 32,
    wait_ms: Wait = 2.0,
    max_queue: MaxQueue = 512,
    max_rows: MaxRows = 1000,
    max_mb: MaxMegabytes = 16.0,
    max_pixels: MaxPixels = 25_000_000,
    max_seconds: MaxSeconds = 30.0,
    false_alarms: FalseAlarms = 0.01,
    keep_unknown: KeepUnknown = 12,
    engine: Engine = "local",
) -> None:
    """Serve exported models over HTTP, with a page to try them and to watch them.

    The page is at the address that is printed. Programs send images, JSON rows or CSV to
    `/predict`, or tensors to `/v2/models/NAME/infer` (Open Inference Protocol); NAME is that of
    the file. `/monitor` says whether the world has changed, `/metrics` is for Prometheus,
    `/openapi.json` describes everything. Decisions are those of the policy in the file, or of
    `--policy`; one that promises nothing calls 5 % of inputs drawn like its data unknown.

    Requests that arrive together are computed together. Requests beyond the limits below are
    refused with a reason; accepted ones are answered, even after Ctrl-C. If a model file changes,
    it is loaded again without dropping a request. With `--workers`, several processes share the
    port; one that dies is restarted and keeps its monitor. Their monitors share `--false-alarms`.

    With `--engine ray`, the service runs on the cluster at $RAY_ADDRESS, whose machines share the
    files, or on one started on this machine: one replica, and up to `--workers` under load.

    Only this machine can connect unless `--host` says otherwise. Set a token then, and put a
    server with TLS before it. On this machine requests must ask for localhost or its address;
    `--allow-host` names others, such as that of a proxy.

    For example

    - `density-softmax serve model.onnx`

    - `curl -F file=@photo.jpg http://127.0.0.1:8000/predict`

    - `curl -H 'Content-Type: text/csv' --data-binary @rows.csv http://127.0.0.1:8000/predict`

    - `density-softmax serve cats.onnx wine.onnx --workers 2 --state watch`

    - `density-softmax serve model.onnx --host 0.0.0.0 --token-file token.txt`
    """
    from density_softmax.service.settings import Settings, read_token

    settings = Settings(
        policy=None if policy is None else str(policy),
        threads=threads,
        batch=batch,
        wait=wait_ms / 1000,
        queue=max_queue,
        body=int(max_mb * 2**20),
        pixels=max_pixels,
        rows=max_rows,
        seconds=max_seconds,
        token=read_token(token_file),
        hosts=_allowed(host, allow_host or []),
        state=None if state is None else str(state),
        false_alarms=false_alarms,
        recent=keep_unknown,
    )
    _serve(models, settings, host, port, workers, engine)


def _serve(
    models: list[Path], settings: object, host: str, port: int, workers: int, engine: EngineName
) -> None:
    from density_softmax.service.models import Shelf
    from density_softmax.service.process import bind, serve
    from density_softmax.service.settings import Settings

    assert isinstance(settings, Settings)
    names = list(Shelf(models, settings).models)  # what cannot be served is said before
    _check_state(settings.state)
    listening = bind(host, port)
    found = listening.getsockname()
    shown = f"[{found[0]}]" if ":" in found[0] else found[0]
    _warn_of_strangers(host, settings.token)
    if engine == "ray":
        from density_softmax.service.cluster import serve_on_cluster

        listening.close()  # it is free, and Ray takes it
        serve_on_cluster(models, settings, found[0], found[1], workers)
        return
    print(f"serving {', '.join(names)} at http://{shown}:{found[1]}", flush=True)
    serve(models, settings, listening, workers)


def _allowed(host: str, others: list[str]) -> tuple[str, ...]:
    """Names under which requests may ask; none allows all.

    A page of another site can make its own name mean this machine, but not ask under ours.
    """
    if host in LOOPBACK:
        return (*LOOPBACK, *others)
    return (host, *others) if others else ()


def _check_state(state: str | None) -> None:
    """Make the folder of states; an error if that fails."""
    from density_softmax.errors import UserError

    try:
        if state is not None:
            Path(state).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--state {state}: no folder can be there ({error.strerror})") from None


def _warn_of_strangers(host: str, token: str | None) -> None:
    if host not in LOOPBACK and token is None:
        print(
            "density-softmax: other machines can connect, and no token is asked for: set one with "
            "--token-file",
            file=sys.stderr,
        )
