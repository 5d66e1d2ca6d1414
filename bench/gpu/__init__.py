"""Measurements that need a GPU; these scripts may start servers."""
