"""Environment variables, secrets and plugins of a pool.

The ledger stores neither values of variables nor secrets nor plugins. Clients that did not create the pool fetch them
from the pool's nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import NotPicklableError, UsageError
from skyward_core.model.specs import Image, Interpreter
from skyward_core.plugins.plugin import has_app_hook
from skyward_core.pool.agent_link import Link
from skyward_core.pool.gang_and_rank_setup import GangSetup, RankSetup
from skyward_core.protocol.frame_codec import MAX_PLUGINS_BYTES
from skyward_core.util.redaction import secret_values, url_secrets

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.pool.gang_and_rank_setup import LockFrame
    from skyward_core.protocol.frame_types import SetupAnswer
    from skyward_core.tasks.packages.package_specs_and_local_packages import PackageSpecs


class RankSetupManager:
    """Configuration of a pool's ranks: environment, secrets, image and plugins.

    Attributes:
        env: Environment variables; empty if unknown.
        is_env_known: Whether ``env`` is known.
        secrets: Values that agents redact.
        credentials: Credentials in the image's URLs. They are never written to disk.
        image: The image as JSON. The ledger's copy lacks variable values and URL credentials.
        interpreter: Interpreter of the pool's scripts, as JSON. None for pools of older releases.
        cwd: Working folder of the client, which is sent to the nodes.
        rank_setup: Setup of the ranks. None until :meth:`create` is called.
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
        """Set the requested image, the interpreter and the packages that the project requires."""
        self._set_env(image.env)
        self.image = image.describe() if packages is None else packages.add_to_image(image.describe())
        if interpreter is not None:
            self.interpreter = interpreter.describe()
        self.credentials = url_secrets([self.image, self.interpreter])
        self.add_secrets(self.credentials)

    def add_secrets(self, values: Sequence[str]) -> None:
        """Add values to the secrets that are redacted."""
        self.secrets += [value for value in values if value not in self.secrets]
        self._news.add_secrets(list(values))

    def _set_env(self, env: dict[str, str]) -> None:
        self.env, self.is_env_known = env, True
        self._news.add_secrets(secret_values(env))

    @property
    def plugins(self) -> bytes:
        """The pickled plugins; empty if unknown."""
        return b"" if self.rank_setup is None else self.rank_setup.plugins

    async def has_plugins(self) -> bool:
        """Check whether plugins enter contexts in the pool's ranks.

        Raises:
            ConnectionError: If this client has to ask a node and none is connected.
        """
        await self.fetch_from_nodes()
        return bool(self.plugins)

    async def fetch_from_nodes(self) -> None:
        """Fetch the configuration from the nodes, unless this client created the pool and knows it.

        Raises:
            ConnectionError: If no node is connected.
        """
        links = [link for link in self._context.links if link.up]
        if not links and not self._is_complete:
            raise ConnectionError("cannot fetch the pool's environment and plugins: no node is connected")
        answer: SetupAnswer
        for link in links:
            if self._is_complete:
                return
            answer, plugins = await link.ask({"t": "setup"})
            if answer["env"] is not None:
                self._set_env(answer["env"])
            self.add_secrets(answer["secrets"])
            if self.rank_setup is not None and not self.rank_setup.knows_plugins and answer["known"]:
                hooks = {"apps": answer["apps"], "joins": answer.get("joins", False)}
                self.rank_setup.set_plugins(plugins, answer["secrets"], **hooks)
        spec = self._context.row.spec
        if self.rank_setup is not None and not self.rank_setup.knows_plugins and not spec["plugins"]:
            self.rank_setup.set_plugins(b"", self.secrets, apps=False, joins=False)
        names = spec.get("variables", [])
        if not self.is_env_known and names and not self._has_warned:
            self._has_warned = True
            self._news.emit_warning(
                f"environment variables lost ({', '.join(names)}): the client that created the pool and its agents "
                "are gone. New ranks run without the variables. Create a new pool if they are required."
            )

    @property
    def _is_complete(self) -> bool:
        return self.is_env_known and (self.rank_setup is None or self.rank_setup.knows_plugins)

    def create(self, plugins: Sequence[Any] | None) -> None:
        """Create the setup of the ranks.

        Args:
            plugins: Plugins of the pool. None for a client that did not create the pool.

        Raises:
            UsageError: If the pickled plugins are too large.
            NotPicklableError: If a plugin cannot be pickled.
        """
        blob = None if plugins is None else _pickle_plugins(plugins) if plugins else b""
        if blob and len(blob) > MAX_PLUGINS_BYTES:
            raise UsageError(
                f"The pickled plugins of the pool take {len(blob):,} bytes; the limit is {MAX_PLUGINS_BYTES:,}. "
                "Load large data on the nodes, in around_process."
            )
        values = self.credentials + [value for plugin in plugins or () for value in plugin.secrets()]
        kind = RankSetup if self._context.is_standalone else GangSetup
        joins = any(plugin.joins for plugin in plugins or ())
        self.rank_setup = kind(self._context, blob, values, apps=has_app_hook(plugins or ()), joins=joins)

    def on_frame(self, link: Link, header: LockFrame) -> None:
        """Pass an agent's frame about the gang lock to the setup of the ranks."""
        if self.rank_setup is not None:
            self.rank_setup.on_frame(link, header)

    def on_down(self, link: Link) -> None:
        if self.rank_setup is not None:
            self.rank_setup.on_down(link)

    async def on_node_replaced(self, form: bool) -> None:
        """Set up the ranks of a replaced node, and save the node's state.

        Args:
            form: Whether to form a gang at once. No gang is formed while another node is lost.
        """
        if form and (self._context.is_standalone or not any(link.gone for link in self._context.links)):
            await self.ensure_set_up()
        self._context.roster.save_state()

    async def restart_processes(self) -> None:
        """Replace the processes of all ranks by new processes.

        Raises:
            ConnectionError: If a node cannot be reached now.
        """
        if self.rank_setup is not None:
            await self.rank_setup.restart_processes()

    async def ensure_set_up(self) -> None:
        """Set up the ranks before the next run needs them. Report a failure without raising an error."""
        try:
            if self.rank_setup is not None:
                await self.rank_setup.ensure_set_up()
        except OSError as error:
            self._news.emit_node_note(self._context.links[0], f"{error}; the next run will set up the ranks")


def _pickle_plugins(plugins: Sequence[Any]) -> bytes:
    # Imported late, because most pools have no plugins.
    from skyward_core.tasks.function_pickling import dumps
    from skyward_core.tasks.guarded_user_code import describe_exception, run_guarded

    data, error = run_guarded(lambda: dumps(tuple(plugins)))
    if error is not None:
        raise NotPicklableError(
            f"Cannot send the plugins to the nodes: {': '.join(describe_exception(error))}"
        ) from error
    return data or b""
