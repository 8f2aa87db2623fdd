"""The host settings that an intent can name, one declaration each; `registry` has all of them.

Nothing is imported here: discovery asks `files` alone for what it has to read.
"""
