"""Control policies: small networks that pick actions from vectors."""
