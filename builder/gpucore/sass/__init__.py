"""SASS as data: what a GPU executes, read from the words of a function or from nvdisasm's JSON.

`model` has the values: registers, operands, instructions, and what each defines and uses. `decoder` reads
words, `nvdisasm` reads JSON, `flow` has basic blocks and dominators.
"""

from gpucore.sass.decoder import decode as decode
from gpucore.sass.flow import Block as Block
from gpucore.sass.flow import Call as Call
from gpucore.sass.flow import ControlFlow as ControlFlow
from gpucore.sass.flow import control_flow as control_flow
from gpucore.sass.model import HARDWIRED as HARDWIRED
from gpucore.sass.model import PT as PT
from gpucore.sass.model import RZ as RZ
from gpucore.sass.model import UPT as UPT
from gpucore.sass.model import URZ as URZ
from gpucore.sass.model import WORD as WORD
from gpucore.sass.model import Barrier as Barrier
from gpucore.sass.model import Constant as Constant
from gpucore.sass.model import Immediate as Immediate
from gpucore.sass.model import Instruction as Instruction
from gpucore.sass.model import Memory as Memory
from gpucore.sass.model import Operand as Operand
from gpucore.sass.model import Register as Register
from gpucore.sass.model import RegisterOperand as RegisterOperand
from gpucore.sass.model import SpecialRegister as SpecialRegister
from gpucore.sass.model import Target as Target
from gpucore.sass.model import Unread as Unread
from gpucore.sass.model import definitions as definitions
from gpucore.sass.model import uses as uses
from gpucore.sass.nvdisasm import Listing as Listing
from gpucore.sass.nvdisasm import read_listings as read_listings
