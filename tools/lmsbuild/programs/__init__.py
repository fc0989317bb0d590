"""Programs that run in a process of their own, most of them under another interpreter, which has a framework but not this
tool: `lmsbuild try` copies them. They import nothing of it.
"""
