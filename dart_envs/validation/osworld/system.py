"""The system: settings of the desktop, the terminal, files, sound, time.

Xfce has no dialogs for GNOME's settings: a person changes them in a terminal, with the program that keeps them.
"""

from __future__ import annotations

from dart_envs.validation.osworld.actions import Oracle, key, pause, run_shell, wait_for_element

SETTINGS = "shell, gsettings"

ORACLES = {
    "13584542-872b-42d8-b299-866967b5c3ef": Oracle(
        SETTINGS,
        (
            run_shell(
                'id=$(gsettings get org.gnome.Terminal.ProfilesList default | tr -d "\'") &&'
                " profile=org.gnome.Terminal.Legacy.Profile:/org/gnome/terminal/legacy/profiles:/:$id/ &&"
                " gsettings set $profile default-size-columns 132 && gsettings set $profile default-size-rows 43"
            ),
            # A new terminal, to see that it took effect.
            key("ctrl", "alt", "t"),
            wait_for_element("terminal", "Terminal"),
            pause(1),
        ),
    ),
    "28cc3b7e-b194-4bc9-8353-d04c0f4d56d2": Oracle(
        "shell, pactl", (run_shell("pulseaudio --start && pactl set-sink-volume @DEFAULT_SINK@ 100%"),)
    ),
    "3ce045a0-877b-42aa-8d2c-b4a863336ab8": Oracle(
        SETTINGS, (run_shell("gsettings set org.gnome.desktop.interface text-scaling-factor 1.5"),)
    ),
    "a4d98375-215b-4a4d-aee9-3d4370fccc41": Oracle(
        SETTINGS, (run_shell("gsettings set org.gnome.desktop.screensaver lock-enabled true"),)
    ),
    "b6781586-6346-41cd-935a-a6b1487918fc": Oracle(
        "shell, timedatectl", (run_shell("echo password | sudo -S timedatectl set-timezone Etc/UTC"),)
    ),
    "bedcedc4-4d72-425e-ad62-21960b11fe0d": Oracle(
        SETTINGS, (run_shell("gsettings set org.gnome.settings-daemon.plugins.power idle-dim false"),)
    ),
    "e0df059f-28a6-4169-924f-b9623e7184cc": Oracle(
        "shell", (run_shell("mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2"),)
    ),
    "ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3": Oracle(
        SETTINGS,
        (
            run_shell(
                "gsettings set org.gnome.shell favorite-apps \"['thunderbird.desktop', 'google-chrome.desktop']\""
            ),
        ),
    ),
    "f9be0997-4b7c-45c5-b05c-4612b44a6118": Oracle(
        SETTINGS, (run_shell("gsettings set org.gnome.desktop.notifications show-banners false"),)
    ),
}
