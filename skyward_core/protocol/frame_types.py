"""Types of all frames, for type checkers: the stub beside this file has them, generated from ``frame_schema``.

Import them in ``if TYPE_CHECKING`` only. Names begin with the sender: ``ClientCall`` is the call that a client sends.
A frame that comes off a stream has no type (``frame_codec.AnyHeader``); the code that handles one kind names its type,
so that an unknown key is an error of the type checker.
"""
