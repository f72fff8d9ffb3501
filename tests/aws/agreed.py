"""Constants that the simulated EC2 and its clients share."""

from __future__ import annotations

KEY = "AKIABED0000000000001"
SECRET = "bed/secret/of/nobody/0000000000000000001"
CONTROL = "/_bed/"
