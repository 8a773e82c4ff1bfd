"""The operator in places where people need it: models of transformers, mmcv's and Deformable DETR's names, ONNX.

Each module imports its own package when it is used, and none is imported here.
"""
