#!/bin/bash
mb=2
export NNODES=2
torchrun --nproc_per_node=4 --nnodes=$NNODES run_recipe.py \
    model.num_layers=8 mixed_precision=bf16_mixed \
    train.micro_batch_size=$mb train.global_batch_size=$((mb * 8)) \
    model.tensor_model_parallel_size=2 "$@"
