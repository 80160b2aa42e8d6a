"""Records of a program's operations besides collectives: forward passes, optimizer steps, waits for batches, saved
checkpoints."""
