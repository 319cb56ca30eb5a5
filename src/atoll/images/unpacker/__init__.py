"""The program that unpacks one layer, inside a jail, on CPython 3.8 and newer.

SECURITY: layers are hostile. A path is resolved as a running container would: component by
component, through the links of this layer and of those below it, and never out of the root. The
result has no link in it, so nothing outside the working folder is reached. Devices are left out,
set-id bits and owners only noted. The jail holds even if this program has a bug, and the host
checks the result before it stores it. Nothing else of Atoll is imported here.
"""
