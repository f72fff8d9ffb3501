"""Base class of sessions without own pools, such as replays. Also names of types that sessions return."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn

from skyward_core.model.errors import UsageError

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_records_and_script_state import LaunchRecord as LaunchRecord
    from skyward_core.client.launch.launch_records_and_script_state import ShellRecord as ShellRecord
    from skyward_core.client.leftover_cleanup import LeftoverScan as LeftoverScan
    from skyward_core.pool.dashboards import Dashboard as Dashboard
    from skyward_core.pool.output_files import FetchResult as FetchResult
    from skyward_core.pool.output_files import FileListing as FileListing
    from skyward_core.transport.ssh.host_key_prompt import Ask as Ask
    from skyward_core.transport.ssh.known_hosts import ServerKey as ServerKey
    from skyward_core.views.pool_view import PoolView


class RejectingSession:
    """Session that rejects each call of a method that a subclass does not define.

    The future that a rejected method returns holds a ``UsageError`` with :attr:`REFUSAL`.
    """

    REFUSAL = "this session has no pools"

    def reject(self: Any, *args: object, begun: Future[Any] | None = None, **options: object) -> Future[Any]:
        """Return a future that holds the error :attr:`REFUSAL`. The future ``begun``, if given, receives the same
        error.
        """
        rejected: Future[Any] = Future()
        for each in filter(None, (rejected, begun)):
            each.set_exception(UsageError(self.REFUSAL))
        return rejected

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return self.reject

    @property
    def notice(self) -> str:
        """Warning that the user must read before the first screen, or ""."""
        return ""

    def pools(self) -> list[PoolView]:
        """Return the known pools: live ones, newest first, then ended ones."""
        return []

    def _refuse(self, *args: object) -> NoReturn:
        raise UsageError(self.REFUSAL)

    search_logs = run_logs = result_values = _refuse

    def _ignore(self, *args: object) -> None:
        """Do nothing."""

    enable_budget_prompts = on_host_key = detach = _ignore
