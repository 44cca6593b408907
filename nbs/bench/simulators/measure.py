"""Rounds of FedAvg in this library and in other simulators, in turn: `python measure.py --help`."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import torch

import fedcl_repro
from fedcl_repro.core import stream
from fedcl_repro.data.datasets import load
from fedcl_repro.data.partition import partition

HERE = Path(__file__).parent
ROOT = str(Path(fedcl_repro.__file__).parents[1])
PROGRAMS = { # name -> program, argument, package
    'fedcl, float32': ('run_ours.py', 'float32', 'torch'),
    'fedcl, bfloat16': ('run_ours.py', 'bfloat16', 'torch'),
    'fluke': ('run_fluke.py', '', 'fluke-fl'),
    'pfl': ('run_pfl.py', '', 'pfl'),
    'FedLab': ('run_fedlab.py', '', 'fedlab'),
    'Flower': ('run_flower.py', '', 'flwr'),
}


def work(data, images, n_clients):
    "Some images of a data set, dealt out by a Dirichlet draw; each client trains on full batches of 16."
    dataset = load(data)
    rows = stream(0, 'images').permutation(len(dataset.y))[:images]
    some = replace(dataset, x=dataset.x[rows], y=dataset.y[rows], n_train=images)
    shards = partition(some, 'dirichlet(concentration=0.1)', n_clients, 0)
    train, test = ([r.tolist() for r in rows] for rows in (shards.train, shards.test))
    train = [r[:len(r) // 16 * 16] for r in train]
    return dict(x=torch.from_numpy(some.x), y=torch.from_numpy(some.y), train=train, test=test)


class Peer:
    "A program that trains a round when it is asked to."
    def __init__(self, python, file, work, argument):
        self.log = Path(tempfile.mkstemp(suffix='.log')[1])
        paths = os.pathsep.join([str(HERE), ROOT])
        room = os.environ | dict(WORK=work, OMP_NUM_THREADS='1', PYTHONPATH=paths)
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open('w'))
        command = [python, str(HERE/file), argument]
        self.process = subprocess.Popen(command, env=room, text=True, **pipes)
        self.line('ready') # before that, an import may read the lines that ask for rounds

    def line(self, word, patience=300): # the words after it, or None if the program ends or takes too long
        timer = threading.Timer(patience, self.process.kill)
        timer.start()
        try: return next((line.split()[1:] for line in self.process.stdout if line.startswith(word)), None)
        finally: timer.cancel()

    def round(self): # CPU seconds, images trained, images tested
        try: print(file=self.process.stdin, flush=True)
        except BrokenPipeError: return None
        return self.line('round')

    def close(self):
        "End the program: what it complained of."
        self.process.kill()
        self.process.wait()
        said = self.log.read_text().strip().splitlines()
        self.log.unlink()
        return said[-1] if said else 'it ended without a word'


def processor():
    "The processor in words, with the instructions that decide about speed."
    try: said = Path('/proc/cpuinfo').read_text(encoding='utf-8')
    except OSError: return 'unknown'
    wide = [i for i in ('avx2', 'avx512f', 'avx512_bf16', 'amx_bf16') if f' {i}' in said]
    names = [line.split(':')[1].strip() for line in said.splitlines() if line.startswith('model name')]
    return f'{(names or ["unknown"])[0]} ({" ".join(wide)})'


def versions(python, packages):
    "The packages that are timed, with their versions."
    code = 'import sys; from importlib.metadata import version\nfor p in sys.argv[1:]: print(p, version(p))'
    said = subprocess.run([python, '-c', code, *packages], capture_output=True, text=True, check=True)
    return dict(line.split() for line in said.stdout.splitlines())


def in_turn(peers, rounds):
    "Seconds of each program's rounds after the first, which warms up, and its images in the last round."
    seconds, images = {name: [] for name in peers}, {}
    for turn in range(rounds + 1):
        for name, peer in list(peers.items()):
            told = peer.round()
            if not told: print(f'{name} is left out: {peers.pop(name).close()}', flush=True)
            else: images[name] = dict(trained=int(told[1]), tested=int(told[2]))
            if told and turn: seconds[name].append(float(told[0]))
            if told: print(f'round {turn}, {name}: {" ".join(told)}', flush=True)
    return {n: seconds[n] for n in peers}, {n: images[n] for n in peers}


def main():
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument('--python', default=sys.executable, help='the interpreter that has the simulators')
    ask.add_argument('--data', default='cifar10')
    ask.add_argument('--images', type=int, default=6000, help='of all clients together')
    ask.add_argument('--clients', type=int, default=20)
    ask.add_argument('--rounds', type=int, default=7, help='of each, after one that warms up')
    ask.add_argument('--out', default=HERE.parent/'results'/'peers.json')
    asked = ask.parse_args()
    load_before = os.getloadavg()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.save(work(asked.data, asked.images, asked.clients), f'{folder}/work.pt')
        peers = {name: Peer(asked.python, file, f'{folder}/work.pt', argument)
                 for name, (file, argument, _) in PROGRAMS.items()}
        seconds, images = in_turn(peers, asked.rounds)
        for peer in peers.values(): peer.close()
    packages = versions(asked.python, sorted({PROGRAMS[name][2] for name in seconds}))
    found = dict(
        processor=processor(), cores=os.cpu_count(), load=[load_before, os.getloadavg()[1]],
        packages=packages, data=asked.data, n_clients=asked.clients, images=images, seconds=seconds)
    Path(asked.out).write_text(json.dumps(found, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__': main()
