"""MindSpore's part of taskd: records of steps, collectives and checkpoints. `framework` is its interface to the
package.

Importing this package imports no MindSpore.
"""
