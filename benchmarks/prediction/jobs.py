"""Models whose steps are predicted and measured, and their micro-batches."""

MICROBATCH = {
    "zoo:mmt:small": 2,
    "zoo:gpt:small": 4,
    "zoo:llama:small": 8,
    "zoo:vit:small": 8,
    "zoo:t5:small": 8,
    "zoo:moe:small": 8,
}
"""Model -> micro-batch size that makes a stage's forward take some 10 ms or more."""

MICROBATCHES = 4
"""Few, so that the schedules differ: on two ranks a split backward saves W out of 5 (F + I + W)."""
