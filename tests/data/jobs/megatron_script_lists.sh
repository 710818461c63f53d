#!/bin/bash
# Lists of flags, one of which is not used, and numbers that are computed.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
micro_batch=1
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
UNUSED_ARGS="--fp8-format hybrid --pipeline-model-parallel-size 8"
GPT_ARGS="
    --num-layers 8
    --seq-length 128 \
    --tensor-model-parallel-size 2
"
TRAINING_ARGS=(
    --micro-batch-size ${micro_batch}
    --global-batch-size $((micro_batch * 2 * ${WORLD_SIZE}))
    --bf16   # as the others
)
TRAINING_ARGS+=(--use-distributed-optimizer)
if [ -z "$MASTER_PORT" ]; then
    MASTER_PORT=6000
fi
run_cmd="torchrun ${DISTRIBUTED_ARGS[@]} --master_port $MASTER_PORT pretrain_gpt.py $GPT_ARGS ${TRAINING_ARGS[@]}"
srun --container-image "image:1" --nodes 2 sh -c "${run_cmd}" > log.txt 2>&1
