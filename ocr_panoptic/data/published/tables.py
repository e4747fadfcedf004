"""
Classes of the published data sets, and the meaning of each value in their label files.

The label maps contain every value that a release uses, so any other value is a fault.
"""

from ocr_panoptic.data.classes import VOID_LABEL, derived_colors
from ocr_panoptic.data.panoptic.annotations import Category
from ocr_panoptic.data.semantic.label_space import LabelSpace

# (label id, name, category, colour) of the 19 evaluated classes, from cityscapesscripts' labels.py.
CITYSCAPES_CLASSES = (
    (7, "road", "flat", (128, 64, 128)),
    (8, "sidewalk", "flat", (244, 35, 232)),
    (11, "building", "construction", (70, 70, 70)),
    (12, "wall", "construction", (102, 102, 156)),
    (13, "fence", "construction", (190, 153, 153)),
    (17, "pole", "object", (153, 153, 153)),
    (19, "traffic light", "object", (250, 170, 30)),
    (20, "traffic sign", "object", (220, 220, 0)),
    (21, "vegetation", "nature", (107, 142, 35)),
    (22, "terrain", "nature", (152, 251, 152)),
    (23, "sky", "sky", (70, 130, 180)),
    (24, "person", "human", (220, 20, 60)),
    (25, "rider", "human", (255, 0, 0)),
    (26, "car", "vehicle", (0, 0, 142)),
    (27, "truck", "vehicle", (0, 0, 70)),
    (28, "bus", "vehicle", (0, 60, 100)),
    (31, "train", "vehicle", (0, 80, 100)),
    (32, "motorcycle", "vehicle", (0, 0, 230)),
    (33, "bicycle", "vehicle", (119, 11, 32)),
)
CITYSCAPES_THINGS = ("human", "vehicle")  # categories whose classes are things
CITYSCAPES_IGNORED = {  # label ids that are not evaluated
    **{0: "unlabeled", 1: "ego vehicle", 2: "rectification border", 3: "out of roi"},
    **{4: "static", 5: "dynamic", 6: "ground", 9: "parking", 10: "rail track"},
    **{14: "guard rail", 15: "bridge", 16: "tunnel", 18: "polegroup", 29: "caravan"},
    30: "trailer",
}
CITYSCAPES_OBJECTS = 1000  # an object's pixels have the value label id * 1000 + number

# The 50 stuff labels among ADE20K's labels 1..150. The other 100 labels, in ascending order, are
# the instance categories 1..100 (categoryMapping.txt in the release).
ADE20K_STUFF = (
    *(1, 2, 3, 4, 5, 6, 7, 10, 12, 14, 17, 18, 22, 26, 27, 29, 30, 35),
    *(41, 47, 49, 52, 53, 55, 60, 61, 62, 64, 69, 78, 80, 85, 92, 95, 97),
    *(100, 101, 102, 106, 107, 110, 114, 115, 118, 123, 129, 132, 141, 142, 146),
)

# Classes of the raw labels 0..19. Left and right are the person's sides, not the viewer's.
LIP_CLASSES = (
    *("Background", "Hat", "Hair", "Glove", "Sunglasses", "UpperClothes", "Dress", "Coat"),
    *("Socks", "Pants", "Jumpsuits", "Scarf", "Skirt", "Face", "Left-arm", "Right-arm"),
    *("Left-leg", "Right-leg", "Left-shoe", "Right-shoe"),
)
LIP_FLIP_PAIRS = ((14, 15), (16, 17), (18, 19))

# Raw label -> class, for the 59 frequent classes of the 459 annotated classes. The other 400
# classes and the raw label 0 are background.
PASCAL_CONTEXT_CLASSES = {
    **{2: "aeroplane", 9: "bag", 18: "bed", 19: "bedclothes", 22: "bench", 23: "bicycle"},
    **{25: "bird", 31: "boat", 33: "book", 34: "bottle", 44: "building", 45: "bus"},
    **{46: "cabinet", 59: "car", 65: "cat", 68: "ceiling", 72: "chair", 80: "cloth"},
    **{85: "computer", 98: "cow", 104: "cup", 105: "curtain", 113: "dog", 115: "door"},
    **{144: "fence", 158: "floor", 159: "flower", 162: "food", 187: "grass", 189: "ground"},
    **{207: "horse", 220: "keyboard", 232: "light", 258: "motorbike", 259: "mountain"},
    **{260: "mouse", 284: "person", 295: "plate", 296: "platform", 308: "pottedplant"},
    **{324: "road", 326: "rock", 347: "sheep", 349: "shelves", 354: "sidewalk", 355: "sign"},
    **{360: "sky", 366: "snow", 368: "sofa", 397: "table", 415: "track", 416: "train"},
    **{420: "tree", 424: "truck", 427: "tvmonitor", 440: "wall", 445: "water", 454: "window"},
    **{458: "wood"},
}
PASCAL_CONTEXT_RAW_LABELS = range(460)

# COCO-Stuff: the 80 things have their COCO ids, with 11 of 1..91 unused; 91 stuff classes follow.
COCO_STUFF_FIRST = 92
COCO_STUFF_CLASSES = (
    *("banner", "blanket", "branch", "bridge", "building-other", "bush", "cabinet", "cage"),
    *("cardboard", "carpet", "ceiling-other", "ceiling-tile", "cloth", "clothes", "clouds"),
    *("counter", "cupboard", "curtain", "desk-stuff", "dirt", "door-stuff", "fence"),
    *("floor-marble", "floor-other", "floor-stone", "floor-tile", "floor-wood", "flower", "fog"),
    *("food-other", "fruit", "furniture-other", "grass", "gravel", "ground-other", "hill"),
    *("house", "leaves", "light", "mat", "metal", "mirror-stuff", "moss", "mountain", "mud"),
    *("napkin", "net", "paper", "pavement", "pillow", "plant-other", "plastic", "platform"),
    *("playingfield", "railing", "railroad", "river", "road", "rock", "roof", "rug", "salad"),
    *("sand", "sea", "shelf", "sky-other", "skyscraper", "snow", "solid-other", "stairs"),
    *("stone", "straw", "structural-other", "table", "tent", "textile-other", "towel", "tree"),
    *("vegetable", "wall-brick", "wall-concrete", "wall-other", "wall-panel", "wall-stone"),
    *("wall-tile", "wall-wood", "water-other", "waterdrops", "window-blind", "window-other"),
    "wood",
)

# Classes of the raw labels 0..64 in version 1.1 (later downloads: 1.2); 65 means unlabelled.
MAPILLARY_CLASSES = (
    *("Bird", "Ground Animal", "Curb", "Fence", "Guard Rail", "Barrier", "Wall", "Bike Lane"),
    *("Crosswalk - Plain", "Curb Cut", "Parking", "Pedestrian Area", "Rail Track", "Road"),
    *("Service Lane", "Sidewalk", "Bridge", "Building", "Tunnel", "Person", "Bicyclist"),
    *("Motorcyclist", "Other Rider", "Lane Marking - Crosswalk", "Lane Marking - General"),
    *("Mountain", "Sand", "Sky", "Snow", "Terrain", "Vegetation", "Water", "Banner", "Bench"),
    *("Bike Rack", "Billboard", "Catch Basin", "CCTV Camera", "Fire Hydrant", "Junction Box"),
    *("Mailbox", "Manhole", "Phone Booth", "Pothole", "Street Light", "Pole"),
    *("Traffic Sign Frame", "Utility Pole", "Traffic Light", "Traffic Sign (Back)"),
    *("Traffic Sign (Front)", "Trash Can", "Bicycle", "Boat", "Bus", "Car", "Caravan"),
    *("Motorcycle", "On Rails", "Other Vehicle", "Trailer", "Truck", "Wheeled Slow"),
    *("Car Mount", "Ego Vehicle"),
)
MAPILLARY_UNLABELLED = 65

# Classes of PASCAL VOC 2012 in the order of their labels.
VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat"),
    *("chair", "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant"),
    *("sheep", "sofa", "train", "tvmonitor"),
)


def cityscapes() -> LabelSpace:
    """Return the 19 evaluated classes of Cityscapes; other ids in ``*_labelIds.png`` are void."""
    ids, names, categories, colors = zip(*CITYSCAPES_CLASSES, strict=True)
    label_map = {raw: label for label, raw in enumerate(ids)}
    label_map |= dict.fromkeys(CITYSCAPES_IGNORED, VOID_LABEL)
    return LabelSpace(names, label_map, colors, class_categories=categories)


def cityscapes_categories() -> list[Category]:
    """Return Cityscapes' 8 thing and 11 stuff categories, with label ids as category ids."""
    return [
        Category(number, name, category in CITYSCAPES_THINGS, color)
        for number, name, category, color in CITYSCAPES_CLASSES
    ]


def ade20k_classes() -> tuple[str, ...]:
    """Return the class names of ADE20K's labels 1..150, in ascending order of labels."""
    from detectron2.data.datasets.builtin_meta import ADE20K_SEM_SEG_CATEGORIES

    return tuple(name.strip() for name in ADE20K_SEM_SEG_CATEGORIES)


def ade20k() -> LabelSpace:
    """Return ADE20K's 150 classes, with raw labels 1..150; label 0 ("other objects") is ignored."""
    label_map = {0: VOID_LABEL, **{raw: raw - 1 for raw in range(1, 151)}}
    return LabelSpace(ade20k_classes(), label_map, derived_colors(150))


def ade20k_categories() -> list[Category]:
    """Return ADE20K's 100 thing and 50 stuff categories; each id is the raw label minus 1."""
    return [
        Category(label - 1, name, label not in ADE20K_STUFF, color)
        for label, (name, color) in enumerate(zip(ade20k_classes(), derived_colors(150)), 1)
    ]


def lip() -> LabelSpace:
    """Return the 20 classes of LIP, including the background."""
    label_map = {**{raw: raw for raw in range(20)}, VOID_LABEL: VOID_LABEL}
    return LabelSpace(LIP_CLASSES, label_map, derived_colors(20), LIP_FLIP_PAIRS)


def voc2012() -> LabelSpace:
    """Return the 21 classes of PASCAL VOC 2012, including the background."""
    label_map = {raw: raw for raw in range(21)}
    return LabelSpace(VOC_CLASSES, label_map, derived_colors(21))


def pascal_context(with_background: bool) -> LabelSpace:
    """Return Pascal Context's 59 classes; the background is either added as class 0 or ignored."""
    background = 0 if with_background else VOID_LABEL
    first = 1 if with_background else 0
    label_map = dict.fromkeys(PASCAL_CONTEXT_RAW_LABELS, background)
    label_map |= {raw: label for label, raw in enumerate(sorted(PASCAL_CONTEXT_CLASSES), first)}
    names = ("background",) * first + tuple(
        PASCAL_CONTEXT_CLASSES[raw] for raw in sorted(PASCAL_CONTEXT_CLASSES)
    )
    return LabelSpace(names, label_map, derived_colors(len(names)))


def coco_stuff_ids() -> dict[int, str]:
    """Return a dict from class id (in 1..182) to name for the 171 classes of COCO-Stuff."""
    from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES

    things = {c["id"]: c["name"] for c in COCO_CATEGORIES if c["isthing"]}
    return {**things, **dict(enumerate(COCO_STUFF_CLASSES, COCO_STUFF_FIRST))}


def coco_stuff(offset: int, unlabelled: int) -> LabelSpace:
    """
    Return the 171 classes of COCO-Stuff.

    Args:
        offset: raw label minus class id, 0 in the 10k release and -1 in the 164k release's PNGs.
        unlabelled: raw label of unlabelled pixels.
    """
    ids = coco_stuff_ids()
    label_map = {raw + offset: label for label, raw in enumerate(sorted(ids))}
    names = tuple(ids[number] for number in sorted(ids))
    return LabelSpace(names, {**label_map, unlabelled: VOID_LABEL}, derived_colors(len(names)))


def mapillary_vistas() -> LabelSpace:
    """Return the 65 classes of Mapillary Vistas."""
    label_map = {**{raw: raw for raw in range(65)}, MAPILLARY_UNLABELLED: VOID_LABEL}
    return LabelSpace(MAPILLARY_CLASSES, label_map, derived_colors(65))
