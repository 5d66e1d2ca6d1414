"""Measures servers over HTTP; every figure in the README comes from a command in here."""
