#!/bin/bash
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
TP=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr localhost
)
MODEL_ARGS=(
    --num-layers 8
    --hidden-size 256   # small
)
PARALLEL_ARGS="--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 2 --sequence-parallel"
python -u -m torch.distributed.run ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} $PARALLEL_ARGS \
    --micro-batch-size 1 --global-batch-size 32 --bf16 --use-distributed-optimizer --overlap-grad-reduce 2>&1 | tee log.txt
