"""Line tables for code that was shipped without them, a plug-in of vdbg-env.

It makes line packs from released wheels (`lines build`), adds line tables to an image that exists (`build --onto`), and
fetches and publishes packs (`lines push`, `lines pull`, addresses of --lines). `vdbg_env.common.plug_ins` names the
functions by which it is entered; nothing of it is loaded before one of them is asked for.
"""
