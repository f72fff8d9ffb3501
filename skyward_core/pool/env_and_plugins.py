"""Environment, secrets and plugins of a pool, which clients that did not make it fetch from its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import NotPicklableError, UsageError
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.model.specs import Image
from skyward_core.plugins.plugin import has_app_hook
from skyward_core.pool.agent_link import Link
from skyward_core.pool.gang_and_rank_setup import GangSetup, RankSetup
from skyward_core.protocol.frame_codec import MAX_PLUGINS_BYTES
from skyward_core.util.redaction import secret_values, url_secrets

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.pool.gang_and_rank_setup import LockFrame
    from skyward_core.protocol.frame_types import SetupAnswer
    from skyward_core.tasks.packages.package_specs import PackageSpecs


class RankSetupManager:
    """One pool's.

    Attributes:
        env: the environment's variables, as far as they are known here.
        known: whether they are.
        secrets: what agents blank.
        credentials: those in URLs of the image; written nowhere.
        image: the image, as JSON; the ledger's one lacks variables' values, and credentials in URLs.
        interpreter: the one that the pool's scripts have, as JSON; None where it is of an older release.
        cwd: the client's working folder that goes to the nodes.
        rank_setup: of the ranks' plugins, once there is one.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._has_warned = False
        self.env: dict[str, str] = {}
        self.is_env_known = False
        self.secrets: list[str] = []
        self.credentials: list[str] = []
        self.image: dict[str, Any] = context.row.spec.get("image", {})
        self.interpreter: dict[str, Any] | None = context.row.spec.get("interpreter")
        self.cwd: str = context.row.spec.get("cwd", "")
        self.rank_setup: RankSetup | None = None

    def set_image(
        self, image: Image, interpreter: Interpreter | None = None, packages: PackageSpecs | None = None
    ) -> None:
        """The image as it was asked for, the interpreter, and what the project says of its packages."""
        self._set_env(image.env)
        self.image = image.describe() if packages is None else packages.add_to_image(image.describe())
        if interpreter is not None:
            self.interpreter = interpreter.describe()
        self.credentials = url_secrets([self.image, self.interpreter])
        self.add_secrets(self.credentials)

    def add_secrets(self, values: Sequence[str]) -> None:
        """More to blank."""
        self.secrets += [value for value in values if value not in self.secrets]
        self._news.add_secrets(list(values))

    def _set_env(self, env: dict[str, str]) -> None:
        self.env, self.is_env_known = env, True
        self._news.add_secrets(secret_values(env))

    @property
    def plugins(self) -> bytes:
        """The pickled plugins, as far as they are known here."""
        return b"" if self.rank_setup is None else self.rank_setup.plugins

    async def has_plugins(self) -> bool:
        """Whether plugins enter contexts in the pool's ranks.

        Raises:
            ConnectionError: only another node can tell, and none is there.
        """
        await self.fetch_from_nodes()
        return bool(self.plugins)

    async def fetch_from_nodes(self) -> None:
        """Have nodes tell what only the client knows that made the pool.

        Raises:
            ConnectionError: none is there.
        """
        links = [link for link in self._context.links if link.up]
        if not links and not self._is_complete:
            raise ConnectionError("no node is there to tell the pool's environment and plugins")
        answer: SetupAnswer
        for link in links:
            if self._is_complete:
                return
            answer, plugins = await link.ask({"t": "setup"})
            if answer["env"] is not None:
                self._set_env(answer["env"])
            self.add_secrets(answer["secrets"])
            if self.rank_setup is not None and not self.rank_setup.knows_plugins and answer["known"]:
                told = {"apps": answer["apps"], "joins": answer.get("joins", False)}
                self.rank_setup.set_plugins(plugins, answer["secrets"], **told)
        spec = self._context.row.spec
        if self.rank_setup is not None and not self.rank_setup.knows_plugins and not spec["plugins"]:
            self.rank_setup.set_plugins(b"", self.secrets, apps=False, joins=False)
        names = spec.get("variables", [])
        if not self.is_env_known and names and not self._has_warned:
            self._has_warned = True
            self._news.emit_warning(
                f"nobody knows its variables any more ({', '.join(names)}): the client that made it and its agents "
                "are gone; new ranks run without them. Make the pool anew where they matter"
            )

    @property
    def _is_complete(self) -> bool:
        return self.is_env_known and (self.rank_setup is None or self.rank_setup.knows_plugins)

    def create(self, plugins: Sequence[Any] | None) -> None:
        """Make the keeper.

        Args:
            plugins: the pool's; None for a client that did not make it.

        Raises:
            UsageError: they are too large to travel.
        """
        blob = None if plugins is None else _pickle_plugins(plugins) if plugins else b""
        if blob and len(blob) > MAX_PLUGINS_BYTES:
            limit = f"{MAX_PLUGINS_BYTES:,} can travel"
            said = f"the pool's plugins take {len(blob):,} bytes when they are pickled, and {limit}: "
            raise UsageError(f"{said}have them load on the nodes, in around_process, what is large")
        values = self.credentials + [value for plugin in plugins or () for value in plugin.secrets()]
        kind = RankSetup if self._context.is_standalone else GangSetup
        joins = any(plugin.joins for plugin in plugins or ())
        self.rank_setup = kind(self._context, blob, values, apps=has_app_hook(plugins or ()), joins=joins)

    def on_frame(self, link: Link, header: LockFrame) -> None:
        """What an agent tells of the gang's lock."""
        if self.rank_setup is not None:
            self.rank_setup.on_frame(link, header)

    def on_down(self, link: Link) -> None:
        if self.rank_setup is not None:
            self.rank_setup.on_down(link)

    async def on_node_replaced(self, form: bool) -> None:
        """A node lives on another machine now. ``form``: have a gang with it, if no other node is gone."""
        if form and (self._context.is_standalone or not any(link.gone for link in self._context.links)):
            await self.ensure_set_up()
        self._context.roster.save_state()

    async def restart_processes(self) -> None:
        """Have fresh processes take the ranks' places.

        Raises:
            ConnectionError: a node cannot be reached now.
        """
        if self.rank_setup is not None:
            await self.rank_setup.restart_processes()

    async def ensure_set_up(self) -> None:
        """Have the ranks set up before they are needed."""
        try:
            if self.rank_setup is not None:
                await self.rank_setup.ensure_set_up()
        except OSError as error:
            self._news.emit_node_note(self._context.links[0], f"{error}; the next run sets the ranks up")


def _pickle_plugins(plugins: Sequence[Any]) -> bytes:
    from skyward_core.tasks.function_pickling import (
        dumps,  # a pool starts sooner without, and most have no plugins
    )
    from skyward_core.tasks.guarded_user_code import describe_exception, run_guarded

    data, error = run_guarded(lambda: dumps(tuple(plugins)))
    if error is not None:
        raise NotPicklableError(
            f"the plugins cannot travel to the nodes: {': '.join(describe_exception(error))}"
        ) from error
    return data or b""
