"""Processes that know nothing of the library yet, but have torch: importing it takes two seconds, so one
process does it and forks for each piece of code. `python fresh.py MODULES` is that process, which also
imports and prepares these modules; it trains nothing, so it forks without threads. `Fresh` talks to it."""
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

COMMAND = 'import sys\nfrom fedcl_repro.cli import main\nsys.exit(main(sys.argv[1:]))'


def run_piece(code, argv, out, env):
    "In a fork: run a piece of code as `python -c` would; its exit code."
    for name, at in (('stdout', 1), ('stderr', 2)):
        os.dup2(os.open(f'{out}/{name}', os.O_WRONLY | os.O_CREAT), at)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ['-c', *argv]
    sys.path[0] = '' # as for `python -c`
    found = 0
    try: exec(compile(code, '<piece>', 'exec'), vars(sys.modules['__main__']))
    except SystemExit as e: found = int(e.code or 0)
    except KeyboardInterrupt: found = 130
    except BaseException:
        traceback.print_exc()
        found = 1
    for stream in (sys.stdout, sys.stderr): stream.flush()
    return found


def serve():
    "Start pieces, and wait for them, as told by lines of JSON."
    import pandas # noqa: F401, imported for all pieces
    import torch
    torch.set_num_threads(1)
    for name in sys.argv[1:]: importlib.import_module(name).prepare()
    assert sys.argv[1:] or not [name for name in sys.modules if name.startswith('fedcl_repro')]
    answers = os.fdopen(os.dup(1), 'w')
    for line in sys.stdin:
        asked = json.loads(line)
        if 'wait' in asked: answer = os.waitstatus_to_exitcode(os.waitpid(asked['wait'], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                answers.close()
                os._exit(run_piece(**asked))
        print(json.dumps(answer), file=answers, flush=True)


class Fresh:
    "Runs pieces of code, each in a fresh process; commands of `fedcl` among them."
    def __init__(self, *modules): # imported once, with a function `prepare`
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        folders = [Path(sys.modules[name].__file__).parent for name in modules]
        path = os.pathsep.join(map(str, [*folders, *filter(None, [os.environ.get('PYTHONPATH')])]))
        # processes are forked, and OpenMP may stand still in the fork of a process in which it had threads
        env = os.environ | dict(OMP_NUM_THREADS='1') | (dict(PYTHONPATH=path) if modules else {})
        self.server = subprocess.Popen([sys.executable, __file__, *modules], **pipes, env=env)
        self.folder = tempfile.TemporaryDirectory(prefix='fresh') # what the processes say

    def ask(self, **what):
        print(json.dumps(what), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def start(self, code, *argv, **env):
        "A process that goes on; `env`: what differs in its environment."
        out = tempfile.mkdtemp(dir=self.folder.name)
        env = {**os.environ, **env}
        return Piece(self, self.ask(code=code, argv=list(map(str, argv)), out=out, env=env), Path(out))

    def run(self, code, *argv, **env):
        "Like `subprocess.run`: returncode, stdout and stderr."
        return self.start(code, *argv, **env).done()

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.folder.cleanup()


class Piece:
    "A process that was started."
    def __init__(self, fresh, pid, out): self.fresh, self.pid, self.out, self.code = fresh, pid, out, None

    def said(self, what='stdout'):
        path = self.out/what
        return path.read_text() if path.exists() else ''

    def wait(self):
        if self.code is None: self.code = self.fresh.ask(wait=self.pid)
        return self.code

    def done(self):
        code = self.wait()
        return SimpleNamespace(returncode=code, stdout=self.said(), stderr=self.said('stderr'))

    def kill(self): os.kill(self.pid, signal.SIGKILL)

    def lines(self):
        "Lines of its standard output as they are written."
        seen = 0
        while True:
            over = self.gone()
            whole = self.said().split('\n')[:-1]
            yield from whole[seen:]
            seen = len(whole)
            if over: return
            time.sleep(.005)

    def gone(self):
        "Whether it has ended."
        with open(f'/proc/{self.pid}/stat') as f: return f.read().rpartition(')')[2].split()[0] == 'Z'


if __name__ == '__main__': serve()
