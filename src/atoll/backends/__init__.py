"""The backends. None knows another; `registry` is the table that names them all."""
