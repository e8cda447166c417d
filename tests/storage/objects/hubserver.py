"""A hub, as Hugging Face's: data sets, tokens, limits of requests, and its store, which is another server.

    with Hub() as hub:
        repository = hub.data_sets["org/set"] = Repository()
        repository.objects["a.tar"] = data
        run("tarcat", "hf://datasets/org/set/a.tar", env=hub.env(tmp_path))

`test_hub` shows by Hugging Face's own libraries that it answers as theirs does.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Self

from tests.storage.objects import fake_hf
from tests.storage.objects.fake_hf import Repository, Servers
from tests.storage.objects.wire import Answer, Connection, Request, Wire

TOKEN = "hf_TOKENOFTHETESTS"
QUIET = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}


class Store(Wire):
    """Where the contents of files are: whoever has an address with a signature gets them, with the token nobody."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub

    def answer(self, request: Request) -> Answer:
        """Answer a request."""
        self._hub.stored.append(request)
        return fake_hf.answer(request, self._hub.data_sets, self._hub.servers)


class Hub(Wire):
    """The hub. `requests` are those to it, and `stored` those to its store."""

    def __init__(self) -> None:
        super().__init__()
        self.data_sets: dict[str, Repository] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()  # nobody has accepted their terms
        self.requests: list[Request] = []
        self.stored: list[Request] = []
        self.before: list[tuple[str, Answer | None]] = []  # parts of targets, and what is answered: None is no answer
        self.after: list[str] = []  # parts of targets whose requests are carried out, and not answered
        self.store = Store(self)

    @property
    def servers(self) -> Servers:
        """The addresses of both."""
        return Servers(self.base, self.store.base)

    def env(self, home: Path, token: str = TOKEN) -> dict[str, str]:
        """Return what commands, and Hugging Face's libraries, need in their environment."""
        known = {"HF_TOKEN": token} if token else {}
        return {"HF_ENDPOINT": self.base, "HF_HOME": str(home / "hf"), "TARTOOLS_TRIES": "3"} | QUIET | known

    def kinds(self) -> dict[str, int]:
        """Return how many requests to the hub there were of each kind, and forget them."""
        kinds = ("revision", "tree", "paths-info", "resolve", "preupload", "batch", "commit")
        names = (next((kind for kind in kinds if f"/{kind}" in request.target), "else") for request in self.requests)
        found = Counter(names)
        self.requests.clear()
        return dict(found)

    def exchange(self, connection: Connection, request: Request) -> None:
        """Answer, or not."""
        request = request._replace(body=connection.receive())
        self.requests.append(request)
        for place, (part, answer) in enumerate(self.before):
            if part in request.target:
                del self.before[place]
                if answer is None:
                    return connection.cut(reset=True)
                return connection.send(answer)
        answer = self.answer(request)
        for part in self.after:
            if part in request.target:
                self.after.remove(part)
                return connection.cut(reset=True)
        return connection.send(answer)

    def answer(self, request: Request) -> Answer:
        """Answer a request, if who makes it may make it."""
        known = request.headers.get("authorization", "")
        if known not in ("", f"Bearer {TOKEN}"):
            message = "Invalid credentials in Authorization header"
            return fake_hf.refusal(request, 401, "", message)
        for repo in self.private:
            if f"/{repo}" in request.path and not known:
                return fake_hf.refusal(request, 401, "RepoNotFound", "Invalid username or password.")
        for repo in self.gated:
            if f"/{repo}/resolve/" in request.path:
                return fake_hf.refusal(request, 403 if known else 401, "GatedRepo")
        return fake_hf.answer(request, self.data_sets, self.servers)

    def __enter__(self) -> Self:
        self.store.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.store.__exit__(*exception)
        self.errors += self.store.errors
