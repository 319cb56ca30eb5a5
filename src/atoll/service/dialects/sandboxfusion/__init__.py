"""SandboxFusion's API, which verl, SkyRL and other trainers score programs by."""
