"""What a service is told: how to batch, what to refuse, where to keep its state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from density_softmax.errors import UserError

TOKEN_VARIABLE = "DENSITY_SOFTMAX_TOKEN"
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Settings:
    """Settings of a service. They can be pickled, for the processes that run it.

    Attributes:
        policy: a .json file of `Policy.save` in place of the policy in the model's file.
        threads: CPU threads per batch; 0 takes all but one, which is left to read requests.
        batch: rows that are computed together at most; 1 answers one by one.
        wait: seconds that a request may wait for others to be computed with.
        queue: rows that may wait; more are refused with 429.
        body: bytes of a request.
        pixels: of an image.
        rows: inputs of a request.
        seconds: from the first byte of a request to its answer.
        token: that requests must carry; None asks for none.
        hosts: names and addresses under which requests may ask for the service; none allows all.
        state: the folder that monitors are kept in; None keeps them in memory.
        replica: the number of this process among those that share the work.
        replicas: as many as there may be of them, which share the monitor's false alarms.
        false_alarms: probability of an alarm of the monitor, ever, while nothing has changed.
        recent: unknown inputs that are kept for the page.
        reload: seconds between looks at the files of the models; 0 never looks.
    """

    policy: str | None = None
    threads: int = 0
    batch: int = 32
    wait: float = 0.002
    queue: int = 512
    body: int = 16 * 2**20
    pixels: int = 25_000_000
    rows: int = 1000
    seconds: float = 30.0
    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    state: str | None = None
    replica: int = 0
    replicas: int = 1
    false_alarms: float = 0.01
    recent: int = 12
    reload: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.false_alarms < 1:
            raise UserError(f"false_alarms={self.false_alarms}: choose a share, such as 0.01")


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token that requests must carry; None if there is none.

    Args:
        file: that holds it; None looks at the variable DENSITY_SOFTMAX_TOKEN.
        environment: variables by name.
    """
    text, where = environment.get(TOKEN_VARIABLE), f"${TOKEN_VARIABLE}"
    if file is not None:
        try:
            text, where = file.read_text(encoding="utf-8"), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: cannot be read as a token ({error})") from None
    if text is None:
        return None
    token = text.strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise UserError(
            f"{where}: a token has at least {SHORTEST_TOKEN} printable ASCII characters; make one "
            "with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token
