"""Frames of the control link: a length of four bytes, little endian, then that many bytes of UTF-8 JSON.

This module packs and unpacks frames; it never reads from a socket.
"""

import json

VERSION = 1
FRAME_BYTES_MAX = 1 << 20
HEAD_BYTES = 4


class NoFrame(Exception):
    """Raised for received bytes that are not a frame of this protocol."""


def packed(message):
    """Returns a message as bytes. Raises NoFrame if it is too long."""
    text = json.dumps(message, separators=(",", ":")).encode("utf-8")
    if len(text) > FRAME_BYTES_MAX:
        raise NoFrame("a message of %d bytes; at most %d fit into a frame" % (len(text), FRAME_BYTES_MAX))
    return len(text).to_bytes(HEAD_BYTES, "little") + text


class Unpacker:
    """Unpacks messages from the bytes received so far."""

    def __init__(self):
        self.bytes = bytearray()

    def add(self, data):
        self.bytes += data

    def next(self):
        """Returns the next complete message, a dictionary; None if its end has not arrived yet."""
        if len(self.bytes) < HEAD_BYTES:
            return None
        length = int.from_bytes(self.bytes[:HEAD_BYTES], "little")
        if length > FRAME_BYTES_MAX:
            raise NoFrame("a frame of %d bytes; at most %d are allowed" % (length, FRAME_BYTES_MAX))
        if len(self.bytes) < HEAD_BYTES + length:
            return None
        text = bytes(self.bytes[HEAD_BYTES : HEAD_BYTES + length])
        del self.bytes[: HEAD_BYTES + length]
        try:
            message = json.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise NoFrame("a frame that is no JSON: %s" % error)
        if not isinstance(message, dict):
            raise NoFrame("a frame that is no JSON object")
        return message
