"""python -m dpdt"""

from dpdt.cli.main import main

if __name__ == "__main__":
    main()
