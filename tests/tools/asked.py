"What a script that executes pages is asked for."
from argparse import ArgumentParser, RawDescriptionHelpFormatter


def pages_asked(doc, folder):
    "The pages that the command line names, without suffix; a page that is not there is refused."
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='PAGE', help=f'a page of {folder.name}/, without suffix')
    names = parser.parse_args().names
    for name in names:
        if not (folder/f'{name}.ipynb').exists(): parser.error(f'there is no {folder.name}/{name}.ipynb')
    return names
