"""Batches of a DataLoader: `loader` resumes in the middle of an epoch, `sources` and `workers` keep the state that an
epoch depends on, `batch_snapshot` keeps the original content of a batch, `epoch_collectives` replays the results that
other ranks sent at an epoch's start.
"""
