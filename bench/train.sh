#!/bin/sh
# The trained rows of an environment, from one seed:
#
#	bench/train.sh ENV SEED [ROW...]
#
# Every row is a policy of a million parameters that is made from nothing. A row's run is runs/<env>/seed<SEED>/<row>; one that is there is
# gone on with, or left as it is if it has come to its end. Its records go to results, and so do the models of seed 1 that tests play with.
#
#	nano-sft        imitates a crowd of scripted agents, about a third of whose episodes succeed
#	nano-grpo       nano-sft, and GRPO in live episodes from there
#	nano-rft        nano-sft, and rejection finetuning: it imitates the crowd's successes and its own
#	nano-zero       imitates the random policy, and GRPO from there
#	nano-sft-full   imitates gold: what the others are not shown
set -eu
cd "$(dirname "$0")/.."

[ $# -ge 2 ] || { sed -n '2,5p' "$0"; exit 2; }
env=$1 seed=$2
shift 2
[ $# -gt 0 ] || set -- nano-sft nano-grpo

name=$(echo "$env" | tr '[:upper:]' '[:lower:]')
run=runs/$name/seed$seed
mcpgym() {
	echo "mcpgym $*"
	runs/mcpgym "$@"
}

# What a row takes, by environment: episodes to imitate, steps to learn them, steps of GRPO, tasks in each, and what is recorded of a split.
case $env in
Weather) episodes=120000 steps=25000 grpo=100 rft=6000 groups=256 tokens=256 tasks=500 ;;
*)
	echo "no trained rows of $env, only of Weather" >&2
	exit 2
	;;
esac

for row in "$@"; do
	case $row in
	nano-sft | nano-grpo | nano-rft | nano-zero | nano-sft-full) ;;
	*)
		echo "no row $row" >&2
		exit 2
		;;
	esac
done
mkdir -p "$run"
go build -o runs/mcpgym ./bench/mcpgym

# play POLICY: a record of its episodes of the train split.
play() {
	[ -e "$run/$1.jsonl" ] || mcpgym run --env "$env-v0" --policy "$1" --split train --episodes $episodes --seed "$seed" --out "$run/$1.jsonl"
}

# learn COMMAND ROW FLAGS: a training run.
learn() {
	command=$1 out=$run/$2
	shift 2
	if [ -e "$out/model" ]; then
		:
	elif [ -e "$out" ]; then
		mcpgym "$command" --resume "$out"
	else
		mcpgym "$command" "$@" --seed "$seed" --out "$out"
	fi
}

# imitate ROW POLICY: a new model that imitates a policy.
imitate() {
	play "$2"
	learn sft "$1" --records "$run/$2.jsonl" --dev-episodes 256 --new nano --vocab 1024 --steps $steps --batch-size 8 --learning-rate 2.5e-3 \
		--pretrain-ratio 0.12
}

# improve ROW START: GRPO.
improve() {
	learn train "$1" --env "$env-v0" --model "$run/$2/model" --loss dr_grpo --steps $grpo --groups $groups --group 8 --updates 4 --temperature 0.8 \
		--max-tokens $tokens --learning-rate 3e-4 --schedule constant --eval-every 10 --eval-episodes 256 --parallel 256
}

# reject ROW START: a model imitates its own successes and the crowd's, at about what GRPO costs.
reject() {
	own=$run/$1.own.jsonl
	[ -e "$own" ] || mcpgym eval "$run/$2/model" --env "$env-v0" --split train --episodes $episodes --seed "$seed" --temperature 0.8 --parallel 256 \
		--max-tokens $tokens --out "$own"
	learn sft "$1" --records "$run/crowd.jsonl,$own" --only-success --dev-episodes 256 --model "$run/$2/model" --steps $rft --batch-size 8 \
		--learning-rate 1e-3
}

# record ROW FLAGS: what it does on every split, and the weights that did it.
record() {
	row=$1
	shift
	model=$run/$row/half
	case $name-$row-$seed in
	weather-nano-sft-1 | *-nano-grpo-1) model=results/$name/$row ;;
	esac
	[ -e "$model" ] || mcpgym merge "$run/$row/model" "$model" --dtype bfloat16
	for split in test ood train; do
		file=results/$name/$row.seed$seed.$split.jsonl.gz
		[ $split != test ] || file=results/$name/$row.seed$seed.jsonl.gz
		[ -e "$file" ] || mcpgym eval "$model" --env "$env-v0" --split $split --episodes $tasks --parallel 256 --max-tokens $tokens --name "$row" \
			--training-seed "$seed" --trained-by "make train ENV=$env SEED=$seed ROWS=$row" "$@" --out "$file"
	done
}

for row in "$@"; do
	case $row in
	nano-sft)
		imitate nano-sft crowd
		record nano-sft
		;;
	nano-grpo)
		imitate nano-sft crowd
		improve nano-grpo nano-sft
		record nano-grpo
		;;
	nano-rft)
		imitate nano-sft crowd
		reject nano-rft nano-sft
		record nano-rft
		;;
	nano-zero)
		imitate random random
		improve nano-zero random
		record nano-zero
		;;
	nano-sft-full)
		imitate nano-sft-full oracle
		record nano-sft-full --expert
		;;
	esac
done
