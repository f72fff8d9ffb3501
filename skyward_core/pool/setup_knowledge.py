"""What only the client that made a pool knows, and its agents after it: the environment's values, secrets, plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.interpreter import Interpreter
from ..model.spec import Image
from ..wire.redact import secret_values, url_secrets
from .context import PoolContext
from .news import News

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..tasks.packages.packages import Packages
    from ..wire.agent_frame_types import SetupAnswer
    from .gang.keeper import Keeper


class SetupKnowledge:
    """One pool's.

    Attributes:
        env: the environment's variables, as far as they are known here.
        known: whether they are.
        secrets: what agents blank.
        credentials: those in URLs of the image; written nowhere.
        image: the image, as JSON; the ledger's one lacks variables' values, and credentials in URLs.
        interpreter: the one that the pool's scripts have, as JSON; None where it is of an older release.
        cwd: the client's working folder that goes to the nodes.
        keeper: of the ranks' plugins, once there is one.
    """

    def __init__(self, context: PoolContext, news: News) -> None:
        self._context = context
        self._news = news
        self._complained = False
        self.env: dict[str, str] = {}
        self.known = False
        self.secrets: list[str] = []
        self.credentials: list[str] = []
        self.image: dict[str, Any] = context.row.spec.get("image", {})
        self.interpreter: dict[str, Any] | None = context.row.spec.get("interpreter")
        self.cwd: str = context.row.spec.get("cwd", "")
        self.keeper: Keeper | None = None

    def know(
        self, image: Image, interpreter: Interpreter | None = None, packages: Packages | None = None
    ) -> None:
        """The image as it was asked for, the interpreter, and what the project says of its packages."""
        self._know_env(image.env)
        self.image = image.describe() if packages is None else packages.added_to(image.describe())
        if interpreter is not None:
            self.interpreter = interpreter.describe()
        self.credentials = url_secrets([self.image, self.interpreter])
        self.know_secrets(self.credentials)

    def know_secrets(self, values: Sequence[str]) -> None:
        """More to blank."""
        self.secrets += [value for value in values if value not in self.secrets]
        self._news.blank(list(values))

    def _know_env(self, env: dict[str, str]) -> None:
        self.env, self.known = env, True
        self._news.blank(secret_values(env))

    async def has_plugins(self) -> bool:
        """Whether plugins enter contexts in the pool's ranks.

        Raises:
            ConnectionError: only another node can tell, and none is there.
        """
        await self.learn()
        return self.keeper is not None and bool(self.keeper.plugins)

    async def learn(self) -> None:
        """Have nodes tell what only the client knows that made the pool.

        Raises:
            ConnectionError: none is there.
        """
        links = [link for link in self._context.links if link.up]
        if not links and not self._knows_all:
            raise ConnectionError("no node is there to tell the pool's environment and plugins")
        answer: SetupAnswer
        for link in links:
            if self._knows_all:
                return
            answer, plugins = await link.ask({"t": "setup"})
            if answer["env"] is not None:
                self._know_env(answer["env"])
            self.know_secrets(answer["secrets"])
            if self.keeper is not None and not self.keeper.knows_plugins and answer["known"]:
                told = {"apps": answer["apps"], "joins": answer.get("joins", False)}
                self.keeper.learn(plugins, answer["secrets"], **told)
        spec = self._context.row.spec
        if self.keeper is not None and not self.keeper.knows_plugins and not spec["plugins"]:
            self.keeper.learn(b"", self.secrets, apps=False, joins=False)
        names = spec.get("variables", [])
        if not self.known and names and not self._complained:
            self._complained = True
            self._news.complain(
                f"nobody knows its variables any more ({', '.join(names)}): the client that made it and its agents "
                "are gone; new ranks run without them. Make the pool anew where they matter"
            )

    @property
    def _knows_all(self) -> bool:
        return self.known and (self.keeper is None or self.keeper.knows_plugins)
