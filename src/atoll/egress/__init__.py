"""A guest's access to the network: a proxy on the host that enforces the policy.

    guest ──127.0.0.1:3128, in its own empty network──▶ proxy ──▶ an address that was checked
            HTTP_PROXY, HTTPS_PROXY                       │ rules, limits, credentials, log

SECURITY: the guest is hostile, and so are the servers it talks to. The name is resolved here, the
connection goes to an address that was checked, and no secret ever enters the guest.
"""
