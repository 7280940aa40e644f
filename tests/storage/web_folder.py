"""A folder as web servers show it: files, and the page of its files."""

from urllib.parse import quote

from seqdata_testing.faults.network import Answer, folder_of


def listing_of(root):
    """Serve a folder, and the page of its files as web servers write it."""
    inner = folder_of(root)

    def answer(asked):
        said = inner(asked)
        if said.status != 404 or asked.path.partition("?")[0] != "/":
            return said
        names = [quote(path.name) for path in root.iterdir() if path.is_file()]
        links = "".join(f'<a href="{name}">it</a>' for name in names)
        return Answer(200, (("Content-Type", "text/html"),), links.encode())

    return answer
