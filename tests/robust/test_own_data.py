"""One's own data: arrays, files, pictures, labels and ids. What is given is used, what is wrong is refused by
name, and what is doubtful is told."""
import math
import os
import struct
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn as nn
from given import DIGITS, SMALL, X, Y, each, refusal, told
from PIL import Image

from fedcl_repro import cli, load_model, simulate
from fedcl_repro.core import Spec
from fedcl_repro.data.datasets import DATASETS, DamagedData, read_npz
from fedcl_repro.data.own_data import client_column, own_dataset, own_inputs, own_labels, read_own
from fedcl_repro.federation.fed import Fed, toy_images
from fedcl_repro.runs.run import Run, check_federation, dataset, shards
from fedcl_repro.runs.simulate import data_spec, fitting, named_data

pytestmark = pytest.mark.usefixtures('registers_as_before')
X_TEST, Y_TEST = DIGITS.x[160:200], DIGITS.y[160:200]
WHOSE = np.arange(160) // 40


# --- 1. the test set

def as_arrays(folder): return data_spec(X, Y, (X_TEST, Y_TEST))
def as_object(folder): return data_spec(replace(DIGITS, x=DIGITS.x[:200], y=DIGITS.y[:200], n_train=160))


def as_file(folder):
    np.savez(folder/'own.npz', x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
    return named_data(folder/'own.npz')


def as_short_file(folder):
    np.savez(folder/'own.npz', x=X, y=Y, x_test=X_TEST, y_test=Y_TEST, client=WHOSE)
    return named_data(folder/'own.npz')


def as_folder(folder):
    for part, x, y in (('train', X, Y), ('Test', X_TEST, Y_TEST)):
        for i, (image, c) in enumerate(zip(x, y)):
            (folder/part/str(c)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(folder/part/str(c)/f'{i:03}.png')
    return named_data(folder)


def with_clients(folder): return data_spec(X, Y, (X_TEST, Y_TEST), clients=WHOSE)
def with_masks(folder): return data_spec(X, Y, (X_TEST, Y_TEST), clients=[WHOSE == i for i in range(4)])


def with_rows(folder):
    return data_spec(X, Y, (X_TEST, Y_TEST), clients=[np.flatnonzero(WHOSE == i) for i in range(4)])


def registered(folder):
    def mine(root): return dict(x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
    mine.__module__ = '__main__'
    DATASETS.add('mine_here', title='mine', n_classes=10, fidelity='mine', embedded=True)(mine)
    return Spec('mine_here')


GIVEN_TESTS = [as_arrays, as_object, as_file, as_short_file, as_folder, with_clients, with_masks, with_rows,
               registered]
SPLITS = [None, 'quantity(minimum=2)', 'dirichlet(concentration=9.0)', 'by_column',
          'random_pathological(classes=5)',
          'equal_dirichlet(concentration=9.0)', 'moon_dirichlet(minimum=2)']


def run_on(data, partition, **more):
    settings = more if partition is None else dict(more, partition=partition)
    return Run.of('fedavg', data=data, **(dict(n_clients=4) | fitting(data, settings)))


@pytest.mark.parametrize('partition', SPLITS, ids=str)
@pytest.mark.parametrize('give', GIVEN_TESTS, ids=lambda f: f.__name__)
def test_a_given_test_set_is_for_testing(give, partition, tmp_path):
    data = give(tmp_path)
    columns = dataset(data, str(tmp_path)).columns
    if partition == 'by_column' and not columns: pytest.skip('there are no clients to go by')
    split = shards(run_on(data, partition, validation=.1))
    assert all((r < 160).all() for r in (*split.train, *split.valid))
    assert all(r.tolist() == list(range(160, 200)) for r in split.test)


def test_ids_of_test_rows_say_who_is_tested_on_them():
    data = data_spec(X, Y, (X_TEST, Y_TEST), clients=np.append(WHOSE, np.arange(40) // 10))
    split = shards(run_on(data, None))
    assert [r.tolist() for r in split.test] == [list(range(160 + 10*i, 170 + 10*i)) for i in range(4)]
    assert [len(r) for r in split.train] == [40] * 4


def test_a_test_set_is_dealt_out_by_name_alone():
    data = as_arrays(None)
    assert sum(map(len, shards(run_on(data, 'quantity(minimum=2, protocol="pooled")')).test)) < 60
    for asked in ('quantity(protocol="personal")', 'dirichlet(protocol="personal", concentration=9.0)'):
        with refusal("protocol='pooled'"): shards(run_on(data, asked))
    with refusal('40 test images'): check_federation(Run.of('fedavg', data=data, n_clients=4))


def test_named_data_are_dealt_as_papers_deal_them():
    split = shards(Run.of('fedavg', n_clients=4))
    assert max(r.max() for r in split.train) >= DIGITS.n_train


# --- 3. pictures and arrays

GREY = np.arange(40 * 64).reshape(40, 8, 8) % 256
CLASSES = np.arange(40) % 4
ARRAYS_TOLD = {
    'bytes of 0 and 1': (dict(x=(GREY > 99).astype(np.uint8)), 'go from 0 to 1'),
    'whole numbers of 0 and 1': (dict(x=(GREY > 99).astype(np.int64)), 'go from 0 to 1'),
    'bytes up to 16': (dict(x=(GREY // 16).astype(np.uint8)), 'value_range=(0, 15)'),
    'whole floats up to 16': (dict(x=(GREY // 16).astype(float)), 'value_range=(0, 15)'),
    'percent': (dict(x=GREY * 100 // 255), 'value_range=(0, 100)'),
    'floats divided twice': (dict(x=GREY / 255 / 255), 'go from 0 to 0.003'),
    'a class of the test alone': (dict(test=(GREY, CLASSES + 1)), 'the test part has images of 1 classes: 4'),
    'a class of training alone': (dict(test=(GREY, CLASSES % 3)), 'training part has images of 1 classes: 3'),
    'a class without images': (dict(y=CLASSES * 2), '3 of 7 classes have no images: 1, 3, 5'),
    'a class of words': (dict(y=['cat', 'dog'] * 20, test=(GREY, ['cat'] * 40)), 'of 1 classes: dog'),
}


@each('given, says', ARRAYS_TOLD)
def test_arrays_are_warned_of(given, says):
    given = dict(x=GREY.astype(np.uint8), y=CLASSES) | given
    assert says in told(lambda: own_dataset(**given))[1]


@pytest.mark.parametrize('x', [GREY, GREY.astype(np.uint8), GREY / 255, GREY / 127.5 - 1, GREY > 99,
                               np.full((40, 8, 8), 7)], ids=str)
def test_usual_arrays_are_not_warned_of(x):
    assert told(lambda: own_dataset(x, CLASSES))[1] == ''


@pytest.mark.parametrize('dtype', [np.uint8, np.int64, float])
def test_a_range_that_is_given_is_used(dtype):
    found, said = told(lambda: own_inputs((GREY // 16).astype(dtype), value_range=(0, 15)))
    assert (found[:, 0] == GREY // 16 * 17).all() and not said
    with refusal('must lie in'): own_inputs(GREY.astype(dtype), value_range=(0, 15))


def test_both_parts_have_one_range():
    "Floats in [-1, 1] whose test part happens to have none below 0 are not read as [0, 1]."
    x = GREY / 127.5 - 1
    bright = np.abs(x)
    assert (own_dataset(x, CLASSES, test=(bright, CLASSES)).x[40:] >= 127).all()
    mixed = own_dataset(GREY.astype(np.uint8), CLASSES, test=(GREY / 255, CLASSES))
    assert (mixed.x[:40] == mixed.x[40:]).all()


def test_labels_keep_their_names():
    ds = own_dataset(GREY, ['dog', 'cat', 'cat', 'emu'] * 10)
    assert (ds.classes, ds.y[:4].tolist()) == (('cat', 'dog', 'emu'), [1, 0, 0, 2])
    with refusal('labels begin at 3'): own_labels(CLASSES + 3, 40)
    assert own_labels(CLASSES + 1, 40, 5)[1] == 5


def test_a_copy_is_trained_on():
    x, y = GREY.astype(np.uint8), CLASSES.copy()
    spec = data_spec(x, y)
    x[:], y[:] = 0, 0
    assert dataset(spec, '').x.any() and dataset(spec, '').y.any()
    ds = own_dataset(GREY, CLASSES)
    assert data_spec(ds) != data_spec(replace(ds, x=255 - ds.x)) # whatever fingerprint it claims


def test_client_ids():
    assert client_column(['a', 'b'], 3, 2).tolist() == [0, 1, -1]
    assert client_column([[True, False], [False, True]], 3, 2).tolist() == [0, 1, -1]
    ds = own_dataset(X, Y, clients=[range(80), range(80, 160), []])
    settings = fitting(data_spec(ds), {})
    assert settings['n_clients'] == 3
    split = shards(Run.of('fedavg', data=data_spec(ds), **settings))
    assert [len(r) for r in split.train] == [60, 60, 0]


def picture(value, mode='L', size=(8, 8)): return Image.new(mode, size, value)


def save(folder, *names, image=None):
    for name in names:
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder/name).suffix: (folder/name).mkdir(exist_ok=True)
        elif (folder/name).suffix == '.txt': (folder/name).write_text('hello')
        else: (image or picture(200)).convert('L').save(folder/name)


FOLDERS = {
    'another format': (['a/1.bmp', 'b/1.tif', 'b/2.webp'], 7, ('a', 'b'), ''),
    'capitals': (['a/1.PNG', 'a/2.JPEG'], 6, ('a', 'b'), ''),
    'no picture': (['a/notes.txt'], 4, ('a', 'b'), 'not read below'),
    'a file beside the classes': (['labels.txt', 'x.png'], 4, ('a', 'b'), 'labels.txt, x.png'),
    'a subfolder': (['a/more/1.png'], 4, ('a', 'b'), 'a/more/'),
    'a hidden folder': (['.ipynb_checkpoints/1.png'], 4, ('a', 'b'), '.ipynb_checkpoints/'),
    "a Mac's folder": (['__MACOSX/1.png', 'a/._1.png'], 4, ('a', 'b'), '__MACOSX/, a/._1.png'),
    'an empty folder': (['c'], 4, ('a', 'b'), 'c/'),
    'a folder of texts': (['c/1.txt'], 4, ('a', 'b'), 'c/, c/1.txt'),
    'a class called train': (['train/1.png'], 5, ('a', 'b', 'train'), ''),
    'numbers': (['2/1.png', '10/1.png'], 6, ('10', '2', 'a', 'b'), ''),
}


@each('more, n, classes, says', FOLDERS)
def test_a_folder_is_read_or_named(more, n, classes, says, tmp_path):
    save(tmp_path, 'a/0.png', 'b/0.png', 'a/00.png', 'b/00.png', *more, image=picture(0))
    save(tmp_path, 'a/0.png', image=picture(255))
    ds, said = told(lambda: read_own(tmp_path))
    assert (len(ds.y), ds.classes) == (n, classes)
    assert says in said and (says or not said)


PARTS = {
    'val beside train and test': (['val/a/0.png'], ('a', 'b'), 'not read below', 'val/'),
    'a class of the test alone': (['test/c/0.png'], ('a', 'b', 'c'), 'only the test part has images', ': c'),
    'a class of training alone': (['train/c/0.png'], ('a', 'b', 'c'), 'only the training part has', ': c'),
    'an empty class of the test': (['test/c'], ('a', 'b'), 'not read below', 'test/c/'),
}


@pytest.mark.parametrize('case', PARTS)
def test_parts_of_a_folder_are_read_or_named(case, tmp_path):
    more, classes, *says = PARTS[case]
    save(tmp_path, *[f'{part}/{c}/0.png' for part in ('train', 'test') for c in 'ab'], *more)
    ds, said = told(lambda: read_own(tmp_path))
    assert ds.classes == classes and all(s in said for s in says)
    assert all(c in ''.join(ds.classes) for c in 'ab') and ds.n_test == 2 + ('test/c/0.png' in more)


def test_numbered_classes_are_in_the_order_of_numbers(tmp_path):
    save(tmp_path, '2/0.png', '10/0.png')
    ds = read_own(tmp_path)
    assert (ds.classes, ds.y.tolist()) == (('2', '10'), [1, 0])


def transparent(mode): # black ink in the alpha channel's upper half
    image = picture(0).convert(mode)
    alpha = np.zeros((8, 8), np.uint8)
    alpha[:4] = 255
    image.putalpha(Image.fromarray(alpha))
    return image


def by_key(mode):
    image = Image.fromarray(np.repeat([0, 9], 32).astype(np.uint8).reshape(8, 8)).convert(mode)
    return image, dict(transparency=9 if mode != 'RGB' else (9, 9, 9))


CLEAR = {
    'LA': lambda p: transparent('LA').save(p),
    'RGBA': lambda p: transparent('RGBA').save(p),
    'a grey key': lambda p: by_key('L')[0].save(p, **by_key('L')[1]),
    'a colour key': lambda p: by_key('RGB')[0].save(p, **by_key('RGB')[1]),
    'a palette': lambda p: transparent('RGBA').convert('P').save(p, transparency=0),
}


@pytest.mark.parametrize('case', CLEAR)
def test_transparency_is_laid_on_white(case, tmp_path):
    save(tmp_path, 'a', 'b/0.png', image=picture(0))
    CLEAR[case](tmp_path/'a'/'0.png')
    ds, said = told(lambda: read_own(tmp_path))
    assert '1 of 2 pictures' in said and ds.x[0].max() == 255 and ds.x[1].max() == 0
    if case != 'a palette': assert ds.x[0][:, :4].max() == 0


def test_full_alpha_is_no_transparency(tmp_path):
    for c in 'ab':
        (tmp_path/c).mkdir()
        picture((40, 200, 90, 255), 'RGBA').save(tmp_path/c/'0.png')
    ds, said = told(lambda: read_own(tmp_path))
    assert ds.shape == (3, 8, 8) and 'transparent' not in said


@pytest.mark.parametrize('ending', ['jpg', 'png', 'tif', 'webp'])
@pytest.mark.parametrize('turn', [2, 3, 6, 8])
def test_pictures_are_upright(ending, turn, tmp_path):
    x = np.zeros((8, 8), np.uint8)
    x[:4, 4:] = 220
    stored = dict([(2, x[:, ::-1]), (3, x[::-1, ::-1]), (6, np.rot90(x)), (8, np.rot90(x, -1))])[turn]
    tags = Image.Exif()
    tags[274] = turn
    save(tmp_path, 'a', 'b/0.png')
    Image.fromarray(np.ascontiguousarray(stored)).convert('RGB').save(tmp_path/'a'/f'0.{ending}', exif=tags)
    read = read_own(tmp_path).x[0].mean(0)
    assert read[:4, 4:].mean() > 150 > 60 > read[4:].mean()


# --- 4. own data that are refused

def own_npz(**changes):
    "What writes an npz file of 40 images, changed in some arrays."
    arrays = dict(x=GREY / 255, y=np.arange(40) % 3) | changes
    return lambda p: np.savez(p, **{k: v for k, v in arrays.items() if v is not None})


def files(*names): return lambda folder: save(folder, *names)


def own_pictures(change):
    "What writes two folders of pictures, one of which is changed."
    def write(folder):
        save(folder, *[f'{c}/{k}.png' for c in 'ab' for k in range(3)])
        change(folder/'a'/'0.png')
    return write


def replaced(make):
    "What puts something else in the place of a file."
    def change(path):
        path.unlink()
        make(path)
    return change


def two_pictures(path):
    picture(0).save(path.with_suffix('.gif'), save_all=True, append_images=[picture(255)])


def huge_picture(path):
    "A small file whose header promises 20,000 by 20,000 pixels."
    Image.new('1', (8, 8)).save(path)
    content = path.read_bytes()
    header = content[12:16] + struct.pack('>II', 20_000, 20_000) + content[24:29]
    path.write_bytes(content[:12] + header + struct.pack('>I', zlib.crc32(header)) + content[33:])


def cut_off(path): path.write_bytes(path.read_bytes()[:len(path.read_bytes()) // 2])


IDS, DEEP = np.arange(40) // 20, Image.fromarray(np.full((8, 8), 40_000, np.uint16))
OWN_DATA = {
    'nothing there': (lambda p: None, 'no such file or folder'),
    'a pipe': (lambda p: os.mkfifo(p), 'neither a plain file nor a folder'),
    'a text': (lambda p: p.write_text('hello'), 'is no npz archive'),
    'an npy': (lambda p: np.save(open(p, 'wb'), np.zeros(3)), 'is no npz archive'),
    'without labels': (own_npz(y=None), 'lacks y: it holds x'),
    'no images': (own_npz(x=np.zeros((0, 8, 8)), y=IDS[:0]), 'there are no images'),
    'images without pixels': (own_npz(x=np.zeros((40, 0, 8))), 'the array has shape (40, 0, 8)'),
    'vectors without numbers': (own_npz(x=np.zeros((40, 0))), 'the array has shape (40, 0)'),
    'vectors too large': (own_npz(x=np.full((40, 3), 1e300)), 'not finite as float32'),
    'not finite': (own_npz(x=np.full((40, 8, 8), np.nan)), 'not finite'),
    'complex': (own_npz(x=np.zeros((40, 8, 8), complex)), 'must be an array of numbers'),
    'volumes': (own_npz(x=np.zeros((40, 2, 2, 2, 2))), 'got an array of shape'),
    'two channels': (own_npz(x=np.zeros((40, 8, 8, 2))), 'whether channels come first or last'),
    'out of range': (own_npz(x=np.full((40, 8, 8), 7.5)), 'images of floats must lie in'),
    'whole numbers above 255': (own_npz(x=np.full((40, 8, 8), 300)), 'must lie in 0 to 255'),
    'pickled labels': (own_npz(y=np.array([{}] * 40, object)), 'save an array of texts as texts'),
    'one word as labels': (own_npz(y=np.array(['a'] * 40)), 'classification needs two classes'),
    'labels from 1': (own_npz(y=IDS + 1), 'labels begin at 1'),
    'float labels': (own_npz(y=IDS / 2), 'labels must be whole numbers'),
    'one-hot labels': (own_npz(y=np.eye(2)[IDS]), 'take .argmax(1)'),
    'negative labels': (own_npz(y=IDS - 1), 'got -1 to 0'),
    'one class': (own_npz(y=IDS * 0), 'classification needs two classes'),
    'labels from 1000': (own_npz(y=IDS + 1000), 'number the classes from 0'),
    'labels of 2**63': (own_npz(y=np.full(40, 2**63, np.uint64)), 'number the classes from 0'),
    'a column of pairs': (own_npz(client=np.zeros((40, 2))), 'must have one entry for each of 40 rows'),
    'clients without ids': (own_npz(client=np.where(IDS, 1., np.nan)), '20 of 40 rows have no client id'),
    'too few clients': (own_npz(client=np.zeros(40)), '2 clients for 1 ids'),
    'an empty folder': (lambda p: p.mkdir(), 'holds no folders'),
    'texts as pictures': (own_pictures(lambda p: p.write_text('hello')), 'cannot read the picture'),
    'a cut-off picture': (own_pictures(cut_off), 'cannot read the picture'),
    'a pipe among pictures': (own_pictures(replaced(os.mkfifo)), 'it is no file'),
    'a folder among pictures': (own_pictures(replaced(os.mkdir)), 'it is no file'),
    'a picture of 16 bits': (own_pictures(DEEP.save), 'more than 8 bits a channel'),
    'a picture of 400 million pixels': (own_pictures(huge_picture), 'decompression bomb'),
    'pictures of two sizes': (own_pictures(picture(0, size=(9, 8)).save), 'make them one size'),
    'two pictures in a file': (own_pictures(two_pictures), 'holds 2 pictures'),
    'a class beside a test part': (files('test/a/0.png', 'test/b/0.png', 'a/0.png'), "none called 'train'"),
    'one folder': (files('a/0.png', 'a/1.png'), 'one class alone'),
    'folders of folders': (files('a/b/0.png', 'c/d/0.png'), 'holds no pictures'),
}


@each('make, says', OWN_DATA)
def test_own_data_are_refused(make, says, tmp_path, capsys):
    make(tmp_path/'own.npz')
    argv = f'run --method fedavg --set n_clients=2 --data {tmp_path/"own.npz"} --store {tmp_path/"runs"}'
    assert cli.main(argv.split()) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert says in said and said.startswith('fedcl: ')


PICTURES, VECTORS = GREY / 255, GREY.reshape(40, 64) / 255
DEALT = dict(n_clients=2, partition='dirichlet(minimum=1)')
SIMULATED = {
    'labels of a named data set': (dict(data='digits'), 'labels belong to data given as arrays'),
    'labels of a file': (dict(data='pictures.npz'), 'leave them out'),
    'an empty name': (dict(data='', labels=None), 'data is empty'),
    'nothing': (dict(data=None, labels=None), 'NoneType need labels'),
    'a dictionary': (dict(data=dict(x=PICTURES)), 'got dict of object'),
    'a generator': (dict(data=iter(PICTURES)), 'of object: convert it before'),
    'ragged lists': (dict(data=[[1, 2], [3]], labels=[0, 1]), 'must be one array of numbers'),
    'masked entries': (dict(data=np.ma.masked_less(PICTURES, .1)), 'images hold masked entries'),
    'a sparse tensor': (dict(data=torch.eye(40).to_sparse()), 'must be a dense tensor with values'),
    'a tensor without values': (dict(data=torch.zeros(40, 6, device='meta')), 'must be a dense tensor'),
    'a column of labels': (dict(labels=CLASSES[:, None]), 'take .reshape(-1)'),
    'labels that lack': (dict(labels=[None] * 40), 'labels hold missing entries'),
    'a number as clients': (dict(clients=5), 'must have one entry for each of 40 rows'),
    'more clients than ids': (dict(clients=CLASSES, n_clients=7), '7 clients for 4 ids'),
    'clients, and a partition': (dict(clients=CLASSES, partition='dirichlet'), 'leave one out'),
    'a share as test': (dict(test=.2), 'test must be a pair'),
    'three test arrays': (dict(test=(PICTURES, CLASSES, CLASSES)), 'test must be a pair'),
    'a model of pictures': (dict(DEALT, data=VECTORS, model='cnn'), 'these data are feature vectors'),
    'views of vectors': (dict(DEALT, data=VECTORS, augmentation='simclr'), 'is about square images'),
    'turned vectors': (dict(DEALT, data=VECTORS, shift='rotation'), "use shift='none'"),
}


@each('given, says', SIMULATED)
def test_data_of_a_simulation_are_refused(given, says):
    with refusal(says): simulate(**dict(method='fedavg', data=PICTURES, labels=CLASSES) | given)


# --- 5. federations of own arrays

IMAGES, LABELS, ROWS = toy_images((4, 3), 4, 0)


def own_fed(store=(IMAGES, LABELS), train=ROWS, test=ROWS, archs=None, arch=None, **settings):
    build = dict(net=lambda: nn.ModuleDict(dict(body=nn.Flatten(), head=nn.Linear(36, 4))))
    settings = dict(n_classes=4) | settings
    return Fed(store, train, test, build if archs is None else archs, arch, **settings)


REFUSED_FEDS = {
    'fewer labels': (dict(store=(IMAGES, LABELS[:6])), '7 images but 6 labels'),
    'more labels': (dict(store=(IMAGES[:5], LABELS)), '5 images but 7 labels'),
    'no images': (dict(store=(IMAGES[:0], LABELS[:0])), 'holds no images'),
    'numpy arrays': (dict(store=(IMAGES.numpy(), LABELS.numpy())), 'a pair of tensors'),
    'one tensor': (dict(store=IMAGES), 'a pair of tensors'),
    'floats in [0, 1]': (dict(store=(IMAGES / 255, LABELS)), 'must lie in [-1, 1] around 0'),
    'floats up to 255': (dict(store=(IMAGES.float(), LABELS)), 'must lie in [-1, 1] around 0'),
    'not finite': (dict(store=(IMAGES / 127.5 - math.nan, LABELS)), 'not finite'),
    'infinite features': (dict(store=(torch.full((7, 3), math.inf), LABELS)), 'not finite'),
    'int images': (dict(store=(IMAGES.long(), LABELS)), 'got torch.int64'),
    'images without channels': (dict(store=(IMAGES[..., 0], LABELS)), '(n, H, W, C), got [7, 6, 6]'),
    'float labels': (dict(store=(IMAGES, LABELS.float())), 'labels are whole numbers'),
    'bool labels': (dict(store=(IMAGES, LABELS > 1)), 'labels are whole numbers'),
    'one-hot labels': (dict(store=(IMAGES, torch.eye(7, dtype=torch.long))), 'labels are whole numbers'),
    'a label too high': (dict(n_classes=2), 'expected 0 to 1'),
    'a negative label': (dict(store=(IMAGES, LABELS - 1)), 'labels go from -1'),
    'no classes': (dict(n_classes=0), 'n_classes must be at least 1'),
    'a float of classes': (dict(n_classes=4.), 'n_classes must be like 1 (int)'),
    'negative rows': (dict(train=[[-1, 3], [4]]), 'train rows of client 0 go from -1 to 3'),
    'rows beyond': (dict(test=[[0], [4, 7]]), 'test rows of client 1 go from 4 to 7'),
    'float rows': (dict(train=[[.5], [4]]), 'must be whole numbers'),
    'a short mask': (dict(train=[np.array([True, False]), [4]]), 'must be whole numbers (k,) or a mask (7,)'),
    'rows in two dimensions': (dict(train=[[[0, 1]], [4]]), 'must be whole numbers'),
    'no clients': (dict(train=[], test=[]), 'at least one client, got none'),
    'no test rows': (dict(test=[]), '2 clients have training rows but 0 test rows'),
    'no architecture': (dict(archs={}), 'at least one architecture'),
    'an unknown architecture': (dict(arch=['net', 'nett']), "unknown architecture 'nett'"),
    'too few architectures': (dict(arch=['net']), '2 clients but 1 architectures'),
    'batch 0': (dict(batch_size=0), 'batch_size must be at least 1'),
    'half a batch': (dict(batch_size=.5), 'batch_size must be like 1 (int)'),
    'no epochs': (dict(local_epochs=0), 'local_epochs must be at least 1'),
    'nobody takes part': (dict(participation=0.), 'participation must lie in (0, 1]'),
    'unknown buffers': (dict(buffers='mean'), "buffers must be 'average'"),
    'unknown beginning': (dict(beginning='any'), "beginning must be 'common' or 'own'"),
}


@each('given, says', REFUSED_FEDS)
def test_a_federation_is_refused(given, says):
    with refusal(says): own_fed(**given)


@each('given, sizes', [
    (dict(), [4, 3]),
    (dict(train=[np.arange(7) < 2, np.arange(7) > 3]), [2, 3]),
    (dict(train=[torch.arange(7) < 2, torch.tensor([4])]), [2, 1]),
    (dict(train=[[], [4]]), [0, 1]),
    (dict(train=[range(3), (5, 6)]), [3, 2]),
    (dict(store=(IMAGES, LABELS.int())), [4, 3]),
    (dict(store=(IMAGES / 127.5 - 1, LABELS)), [4, 3]),
])
def test_a_federation_is_accepted(given, sizes):
    fed = own_fed(**given)
    assert fed.sizes == sizes and all(r.dtype == torch.long for r in fed.rows['train'])


# --- 6. files of data sets

ARRAYS = dict(x_train=np.zeros((2, 1, 8, 8), np.uint8), y_train=np.array([0, 1]),
             x_test=np.zeros((1, 1, 8, 8), np.uint8), y_test=np.array([1]))


def archive(path, **changes):
    np.savez(path, **{k: v for k, v in (ARRAYS | changes).items() if v is not None})


def endless(path):
    "Its header promises ten billion images, and has none."
    archive(path, x_train=None)
    header = dict(descr='|u1', fortran_order=False, shape=(10**10, 1, 8, 8))
    with zipfile.ZipFile(path, 'a') as z, z.open('x_train.npy', 'w') as file:
        np.lib.format.write_array_header_1_0(file, header)


NO_TRAINING = {k: ARRAYS[k][:0] for k in ('x_train', 'y_train')}
FILES = {
    'empty': (lambda p: p.write_bytes(b''), 'cannot be read'),
    'no archive': (lambda p: p.write_text('hello'), 'cannot be read'),
    'a folder': (lambda p: p.mkdir(), 'is no file'),
    'a pipe that nobody fills': (lambda p: os.mkfifo(p), 'is no file'),
    'cut off': (lambda p: (archive(p), p.write_bytes(p.read_bytes()[:300])), 'cannot be read'),
    'without labels': (lambda p: archive(p, y_train=None), 'lacks y_train'),
    'float images': (lambda p: archive(p, x_train=ARRAYS['x_train'] / 255), 'expected uint8'),
    'other shape': (lambda p: archive(p, x_test=np.zeros((1, 8, 8), np.uint8)), 'expected uint8[n, 1, 8, 8]'),
    'float labels': (lambda p: archive(p, y_test=np.array([1.])), 'expected integers'),
    'fewer labels': (lambda p: archive(p, y_train=np.array([0])), 'holds 2 images but 1 labels'),
    'no training images': (lambda p: archive(p, **NO_TRAINING), 'no training'),
    'a label too high': (lambda p: archive(p, y_test=np.array([7])), 'labels from 0 to 7'),
    'a negative label': (lambda p: archive(p, y_test=np.array([-1])), 'labels from -1'),
    'ten billion images': (endless, 'promises 640000000000 bytes of x_train'),
    'pickled objects': (lambda p: archive(p, y_train=np.array([{}, {}], object)), 'expected integers'),
}


@each('make, says', FILES)
def test_a_data_file_is_refused(make, says, tmp_path):
    make(tmp_path/'own.npz')
    with refusal(says, DamagedData) as error: read_npz(tmp_path/'own.npz', 'own', (1, 8, 8), 2)
    assert 'delete' not in str(error.value)




def test_the_row_numbers_of_a_data_frame_are_no_feature(tmp_path):
    "`to_csv` writes them as a first column without a name; another column of whole numbers stays."
    frame = pd.DataFrame(dict(a=np.arange(8.)[::-1], b=np.arange(8.) ** 2, label=[0, 1] * 4))
    for name, index in (('with', True), ('without', False)): frame.to_csv(tmp_path/f'{name}.csv', index=index)
    with pytest.warns(UserWarning, match='counts the rows'): numbered = read_own(tmp_path/'with.csv')
    assert np.array_equal(numbered.x, read_own(tmp_path/'without.csv').x) and numbered.x.shape[1] == 2


def test_a_model_read_by_its_id_reads_images_as_the_run_did(tmp_path):
    "The range of the user's whole numbers is kept with the models."
    x = (X - X.min()) / (X.max() - X.min()) * 100
    data = own_dataset(x.round().astype(np.int64), Y, value_range=(0, 100))
    result = simulate('fedavg', data, store=tmp_path, **SMALL)
    id, = (p.parent.name for p in tmp_path.glob('*/run.json'))
    by_id = load_model(id, store=tmp_path)
    assert by_id.image_scale == result.model().image_scale != ()
