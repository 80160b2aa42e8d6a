"""A script that was written for torch_npu and marks its steps with torch.npu.mstx, on the stand-in."""

import torch
import torch_npu

assert torch_npu.IS_STAND_IN
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for n in range(3, 8):
    torch.npu.mstx.is_listening = n > 4
    stream = torch.npu.current_stream()
    step = torch.npu.mstx.range_start(f"step {n}", stream)
    inner = torch.npu.mstx.range_start(message="load", domain="default")
    torch.npu.mstx.range_end(inner)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if n == 6:
        torch.npu.mstx.mark("half way", stream)
        save = torch.npu.mstx.range_start("save_checkpoint")
        torch.save(net, "/dev/null")
        torch.npu.mstx.range_end(save)
    torch.npu.mstx.range_end(step)
print(*torch.npu.mstx.calls, sep="\n")
