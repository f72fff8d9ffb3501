"""What packages are called that have modules of another name: who is told to install one must be told the right one."""

from __future__ import annotations

from collections.abc import Mapping

DISTRIBUTIONS: Mapping[str, str] = {
    "PIL": "pillow", "attr": "attrs", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "dotenv": "python-dotenv", "git": "GitPython", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}  # fmt: skip
