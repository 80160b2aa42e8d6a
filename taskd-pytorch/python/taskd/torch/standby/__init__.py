"""A standby: a process that waits to replace a lost rank. `init_process_group` starts it without peers,
`local_collectives` answers its collectives until it has peers, `warm_up` runs its first steps. The files for the time
before the program starts are `_taskd_standby*.py`, beside this package.
"""
