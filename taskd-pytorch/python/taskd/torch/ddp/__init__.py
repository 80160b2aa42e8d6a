"""DistributedDataParallel: `reducer` for a step that is aborted before reducers are built, `unfinished_backward` for
backward passes that were aborted in their middle.
"""
