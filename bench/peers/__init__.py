"""Other gateways and engines, each in an environment of its own, put under the same load as ours."""
