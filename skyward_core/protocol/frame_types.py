"""Types of all frames for type checkers, generated from ``frame_schemas_and_size_limits`` into the stub beside it.

Import the types only under ``if TYPE_CHECKING``. Names begin with the sender: ``ClientCall`` is a client's call.
Received frames have no type (``frame_codec.AnyHeader``). The handler of each kind declares the type, so that type
checkers detect unknown keys.
"""
