"""The words of stories: names, kinds of characters, things, places, food, weather.

Fields within a line are separated by semicolons; a comment above each table names them.
"""

from __future__ import annotations


def listed(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The words of a text, or the parts between separators."""
    return tuple(text.split(separator))


HER_NAMES = listed(
    "Mia Anna Lily Rosa Clara Ella Nora Ruby Ivy Zoe Lena Maya Tilly Daisy Hazel Fern Luna Olive Pearl Wren "
    "Greta Molly Poppy Emma Sofia Nina Ada Bella Dora Edith Flora Gina Hanna Ida Juno Kira Lotta Mina Nelly Opal "
    "Penny Rita Sally Tara Una Vera Willa Yara Amber Betty Cora Dina Elsa Frida"
)
HIS_NAMES = listed(
    "Leo Max Tom Ben Sam Finn Hugo Oscar Theo Otto Milo Felix Jack Noah Oliver Bruno Emil Anton Karl Paul Toby "
    "Rufus Pip Barney Casper Dan Eddy Fred Gus Henry Ivan Jon Kit Luca Monty Nico Olaf Peter Ralf Simon Tim Uwe "
    "Victor Walter Yann Arlo Basil Conrad Dexter Edgar Frank Goran Hector Igor"
)

# kind; where it lives; what it likes to eat; her, his or any
KINDS = """
fox; in a den under the hill; blueberries; any
rabbit; in a burrow under the hedge; carrots; any
bear; in a cave behind the waterfall; honey; any
mouse; in a hole behind the kitchen wall; cheese; any
hedgehog; in a pile of leaves by the fence; apples; any
squirrel; in a tall oak tree; nuts; any
owl; in the old church tower; mushroom pie; any
frog; beside a quiet pond; green pea soup; any
duck; in the reeds by the lake; bread crumbs; any
cat; in a house with a blue door; fish; any
dog; in a kennel behind the farm; sausages; any
turtle; near a warm pond; lettuce; any
deer; in the deep forest; sweet grass; any
badger; in a tunnel under the hill; potatoes; any
beaver; in a lodge on the river; willow bark; any
otter; on the bank of the river; clams; any
mole; in a tunnel under the garden; beet soup; any
bat; under the roof of the barn; plums; any
wolf; on the other side of the mountain; meat pie; any
lion; on the wide yellow plain; peach cake; any
elephant; beside a wide river; bananas; any
monkey; in a tree in the jungle; bananas; any
penguin; on the white ice; little fish; any
goat; on the steep mountain; thistles; any
donkey; in a stable beside the mill; oats; any
pony; in a red stable; sugar lumps; any
lamb; in a green meadow; clover; any
hen; in a warm coop; corn; her
rooster; on the roof of the coop; corn; his
raven; in a dead tree; walnuts; any
crow; on top of the old chimney; cherries; any
sparrow; under the roof of the station; seeds; any
swan; on the silver lake; water plants; any
goose; in the farm yard; grass; any
pig; behind the farm house; turnips; any
cow; in the barn; hay; her
horse; in the long stable; apples; any
camel; near a well in the desert; dates; any
giraffe; among the high trees; leaves; any
tiger; in the tall grass; rice pudding; any
panda; in a green valley; bamboo; any
koala; in a sleepy tree; fresh leaves; any
kangaroo; in the red desert; grass; any
seal; on a rock in the sea; herring; any
whale; in the deep blue sea; tiny shrimp; any
crab; under a flat stone on the beach; seaweed; any
snail; under a big leaf; salad; any
ant; in a hill of sand; sugar; any
bee; in a yellow hive; nectar; her
butterfly; in the flower garden; nectar; any
spider; in the corner of the attic; soup; any
dragon; in a cave full of old books; hot peppers; any
robot; in a workshop; warm oil; any
giant; in a castle on a cloud; porridge; any
wizard; in a tower made of stone; pumpkin soup; his
witch; in a crooked house; pumpkin soup; her
fairy; in a hollow tree; rose jam; her
girl; in a small house near the bridge; pancakes; her
boy; in a flat above the bakery; noodles; his
princess; in a white castle; strawberry cake; her
prince; in a castle by the sea; cherry cake; his
king; in a castle with seven towers; roast potatoes; his
queen; in a castle with a hundred windows; lemon cake; her
farmer; on a farm near the village; corn bread; any
baker; above the bakery; fresh rolls; any
sailor; in a boat in the harbor; fish soup; any
teacher; beside the school; plum cake; any
tailor; in a narrow street; dumplings; any
painter; in a room with a big window; tomato soup; any
gardener; in a hut in the garden; beans; any
miller; in the windmill; bread; any
doctor; in the middle of the town; pears; any
shepherd; in a hut on the hill; goat cheese; any
clown; in a yellow wagon; popcorn; any
knight; in a tent beside the castle; beef stew; any
"""
# Kinds that a request may name although no story begins with one: they live somewhere and eat something.
RARE_KINDS = listed(
    "lizard parrot hamster llama zebra hippo dolphin octopus starfish jellyfish peacock pelican flamingo ostrich "
    "toad newt ferret weasel lynx leopard gorilla walrus moose bison buffalo beetle ladybug cricket firefly moth "
    "worm salmon shark eagle hawk stork heron seagull puffin robin magpie woodpecker hummingbird chicken turkey "
    "sheep bull ox mule rat chipmunk raccoon skunk possum armadillo anteater sloth dinosaur unicorn mermaid elf "
    "dwarf troll ghost pirate captain soldier astronaut nurse postman fisherman carpenter"
)
ONLY_HIS = frozenset(listed("bull ox postman fisherman rooster"))
ONLY_HER = frozenset(listed("mermaid ladybug chicken"))
RARE_HOMES = (
    "near the old mill",
    "at the edge of the forest",
    "behind the green hill",
    "by the sea",
    "in a small hut",
    "in a quiet valley",
)
RARE_FOODS = ("pancakes", "berries", "apple pie", "vegetable soup", "honey bread", "rice", "cookies")
PEOPLE = frozenset(
    listed(
        "giant wizard witch fairy girl boy princess prince king queen farmer baker sailor teacher tailor painter "
        "gardener miller doctor shepherd clown knight robot mermaid elf dwarf troll ghost pirate captain soldier "
        "astronaut nurse postman fisherman carpenter"
    )
)
GROWN = frozenset(
    listed("king queen farmer baker sailor teacher tailor painter gardener miller doctor shepherd knight")
)

ADJECTIVES = listed(
    "little small young brave clever kind shy curious cheerful quiet gentle lazy busy friendly careful merry "
    "proud sleepy patient funny hungry"
)
GROWN_ADJECTIVES = listed("old kind clever busy friendly careful merry patient brave tall quiet")

COLORS = listed("red blue green yellow white black brown purple pink orange gray")
# What a character wears, of some color; worn on.
WEARS = listed("scarf; hat; coat; cap; ribbon; bow tie; vest; belt; backpack; necklace", "; ")

# A thing that can be carried; how it may look.
THINGS = """
ball; red blue green yellow striped round
kite; red blue yellow purple paper orange
lantern; small brass old green golden
drum; little red round wooden
flute; silver wooden long golden
book; thick blue old little green
map; old yellow torn secret
bell; golden silver tiny brass
toy boat; wooden white blue little
hat; straw black tall purple
basket; round brown big little
cup; blue white golden cracked
button; shiny round black golden
coin; golden silver shiny old
spoon; wooden silver long
shell; white pink spiral shiny
feather; white blue long golden
umbrella; yellow black big red
whistle; silver tin loud red
clock; old round golden little
ring; golden silver thin
marble; green glass blue round
mirror; small round silver
pencil; red long blue short
candle; white tall yellow
key; small golden rusty silver
toy train; red wooden green little
scarf; warm blue red woolen
pillow; soft white blue
teapot; brown blue round old
violin; old brown little
paint brush; long thin red
telescope; brass long old
wagon; red little wooden
sled; red wooden fast
blanket; warm gray soft blue
doll; little rag wooden
compass; brass old round
stone; round shiny blue smooth
jar; big glass empty
"""

# A place; its preposition.
PLACES = """
the forest; in
the river; by
the market; at
the old mill; at
the lake; by
the village; in
the garden; in
the beach; on
the station; at
the hill; on
the meadow; in
the harbor; at
the bakery; at
the bridge; at
the barn; in
the orchard; in
the castle; at
the library; in
the school; at
the lighthouse; at
the town square; in
the farm; at
the park; in
the pond; by
"""
# Where a small thing may lie.
SPOTS = (
    "under a bench",
    "behind a big stone",
    "in the tall grass",
    "under an old tree",
    "beside the gate",
    "in an empty barrel",
    "on top of a wall",
    "under a pile of leaves",
    "in a hollow log",
    "behind the door",
    "between two roots",
    "next to the well",
    "under a wooden cart",
    "in a bird's nest",
    "at the bottom of the stairs",
    "behind a flower pot",
)

DISHES = (
    "an apple pie",
    "a loaf of bread",
    "a honey cake",
    "a bowl of cherries",
    "a pot of soup",
    "a plate of cookies",
    "a basket of berries",
    "a cheese sandwich",
    "a big pancake",
    "a pumpkin pie",
    "a bag of nuts",
    "a plum cake",
    "a jar of jam",
    "a bunch of grapes",
)

# What the weather is; what one sees of it.
WEATHERS = """
sunny; the sun was shining and the sky was blue
rainy; the rain fell on the roofs
windy; the wind blew the leaves around
snowy; soft snow covered everything
foggy; fog lay over the fields
cloudy; gray clouds hung over the hills
warm; the air was warm and smelled of flowers
cold; there was ice on the windows
"""
TIMES = listed("morning; afternoon; evening; day", "; ")
SEASONS = ("spring", "summer", "autumn", "winter")


def table(lines: str) -> list[tuple[str, ...]]:
    """The rows of one of these tables, in order."""
    return [tuple(field.strip() for field in line.split(";")) for line in lines.strip().splitlines()]
