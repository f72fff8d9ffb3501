"""Frames that their receivers do not validate by a table, for the protocol page and the types of frames."""

from __future__ import annotations

from skyward_core.protocol import frame_schemas_and_size_limits as frame_schemas
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES, MAX_PLUGINS_BYTES
from skyward_core.protocol.validators import (
    FrameSchema,
    FrameSchemas,
    is_bool,
    is_count,
    is_file_name,
    is_rank_info,
    is_text,
)

# Frames from an agent to its workers, which do not validate them.
TO_WORKER: FrameSchemas = {
    # Set up the process for this epoch. The body is the pickled plugins. `sharers` and `devices` are only for a process
    # that runs tasks separately from broadcasts.
    "setup": FrameSchema(
        {
            "info": is_rank_info,
            "gang?": is_bool,
            "own?": is_rank_info,
            "apart?": is_bool,
            "failed?": frame_schemas.PLUGIN_ERROR_KEYS,
            "sharers?": is_count,
            "devices?": is_text,
        },
        frame_schemas._SET_UP,
        body=MAX_PLUGINS_BYTES,
    ),
    # Place of the rank, sent before a gang is formed.
    "place": FrameSchema(
        {"info": is_rank_info, "own": is_rank_info},
    ),
    # Run a function. Keys and body are those of the client's frame "call".
    "call": FrameSchema(frame_schemas._CALL_KEYS, body=2 * MAX_INLINE_BYTES),
    # The client has received all values of a generator whose numbers are below `next`.
    "credit": frame_schemas.FROM_CLIENT["credit"],
    # Value of a streamed argument, or a part of this value. If `ends` is "error", the body is the exception that the
    # iterator raised.
    "fed": frame_schemas.FROM_CLIENT["fed"],
    # Exit normally.
    "exit": FrameSchema(),
}

# Frames on separate TLS connections for files (``protocol.blocking_tls_connection``), between nodes and with
# the client. File content follows the frames. After an invalid answer the connection is closed.
FILE_FRAMES: FrameSchemas = {
    # Request a blob. The answer is "comes", followed by the blob.
    "blob": FrameSchema({"name": is_file_name}),
    # Upload of a blob by the client. The answer is "go". After the client has sent the blob, the node answers "there".
    "put": FrameSchema(
        {"name": is_file_name, "size": is_count},
    ),
    # Request of the client for the file with a result. The answer is "comes", followed by the file.
    "result": FrameSchema(
        {"name": is_file_name, "at": is_count},
    ),
    # Request for a file that ranks wrote. The answer is "comes", followed by the file and "whole".
    "output": FrameSchema(
        frame_schemas.OUTPUT_KEYS,
        {"at": is_count, "hashes?": is_bool},
    ),
    # The node is ready to receive the blob.
    "go": FrameSchema(),
    # The file was sent completely and has not changed since it was listed. `sha256` may be empty: see `hashes`.
    "whole": FrameSchema(
        {"sha256": is_text},
    ),
    # The blob was received and its content matches its name.
    "there": FrameSchema(),
    # The content of the file follows this frame.
    "comes": FrameSchema({"size": is_count}),
    # The request failed; the connection is closed.
    "answer": FrameSchema({"error": is_text}),
}
